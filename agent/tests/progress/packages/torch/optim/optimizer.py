import functools
from collections import OrderedDict
from itertools import chain

_global_optimizer_post_hooks = OrderedDict()


def register_optimizer_step_post_hook(hook):
    # Registered at once although this module is half imported, the hook would be lost.
    number = len(_global_optimizer_post_hooks)
    _global_optimizer_post_hooks[number] = hook
    return number


class Optimizer:
    def __init__(self):
        self.hooks = OrderedDict()
        if not getattr(type(self).step, "hooked", None):
            type(self).step = self.profile_hook_step(type(self).step)
            type(self).step.hooked = True

    @staticmethod
    def profile_hook_step(func):
        @functools.wraps(func)
        def wrapper(*args, **kwargs):
            self = args[0]
            out = func(*args, **kwargs)
            for post_hook in chain(self.hooks.values(), _global_optimizer_post_hooks.values()):
                post_hook(self, args, kwargs)
            return out

        return wrapper


_global_optimizer_post_hooks = OrderedDict()
