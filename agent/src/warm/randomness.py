# Random numbers: those of the template are not the same in all workers that are forked from it.
import random, tempfile, weakref


seed_generator, seed_program = random.Random.seed, random.seed
get_state, set_state = random.Random.getstate, random.Random.setstate
# Generators that imports have made without a seed, what was read of their states, and packages that have seeded that of
# the program.
unseeded, unseeded_states, seeding = {}, [], []


def on_seed_generator(generator, a=None, version=2):
    unseeded.pop(id(generator), None)
    if a is None:
        unseeded[id(generator)] = weakref.ref(generator)
    return seed_generator(generator, a, version)


def on_get_state(generator):
    state = get_state(generator)
    if id(generator) in unseeded:
        unseeded_states.append(state)
    return state


def on_set_state(generator, state):
    # As for a copy of a generator, which is made without a seed.
    set_state(generator, state)
    if state in unseeded_states or state == random.getstate():
        unseeded[id(generator)] = weakref.ref(generator)
    else:
        unseeded.pop(id(generator), None)


def on_seed_program(*given, **named):
    # An import may have kept this function.
    if random.seed is on_seed_program:
        seeding.append(package_at_work())
    return seed_program(*given, **named)


def watch_seeds(is_watched):
    random.Random.seed = on_seed_generator if is_watched else seed_generator
    random.seed = on_seed_program if is_watched else seed_program
    random.Random.getstate = on_get_state if is_watched else get_state
    random.Random.setstate = on_set_state if is_watched else set_state
    tempfile._os = Watched() if is_watched else os


def check_seeds():
    for package in seeding:
        raise Unfit("`%s` calls random.seed while it is imported, and forked workers have seeds of their own" % package)
    numpy = sys.modules.get("numpy.random")
    # numpy keeps the seed that it had from the system until it is given another one.
    state = getattr(getattr(numpy, "get_state", None), "__self__", None)
    if getattr(getattr(state, "_bit_generator", None), "_seed_seq", True) is None:
        raise Unfit("an import calls numpy.random.seed, and forked workers have seeds of their own")


def renew_seeds():
    # That of `random` itself does so by itself.
    for generator in [reference() for reference in unseeded.values()]:
        if generator is not None:
            seed_generator(generator)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()
