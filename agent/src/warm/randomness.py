# Random numbers: those of the template are not the same in all workers that are forked from it.
import random, tempfile, weakref


seed_generator, seed_program = random.Random.seed, random.seed
# Generators that imports have made without a seed, and packages that have seeded that of the program.
unseeded, seeding = {}, []


def on_seed_generator(generator, a=None, version=2):
    unseeded.pop(id(generator), None)
    if a is None:
        unseeded[id(generator)] = weakref.ref(generator)
    return seed_generator(generator, a, version)


def on_seed_program(*given, **named):
    seeding.append(package_at_work())
    return seed_program(*given, **named)


def watch_seeds(is_watched):
    random.Random.seed = on_seed_generator if is_watched else seed_generator
    random.seed = on_seed_program if is_watched else seed_program
    tempfile._os = Watched() if is_watched else os


def check_seeds():
    for package in seeding:
        raise Unfit("`%s` calls random.seed while it is imported, and forked workers have seeds of their own" % package)
    numpy = sys.modules.get("numpy.random")
    # By numpy's seeding with all that the system gives, and not by that with a number.
    if numpy is not None and numpy.get_state()[1][0] != 1 << 31:
        raise Unfit("an import calls numpy.random.seed, and forked workers have seeds of their own")


def renew_seeds():
    # That of `random` itself does so by itself.
    for generator in [reference() for reference in unseeded.values()]:
        if generator is not None:
            seed_generator(generator)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()
