# Loads the `sitecustomize` that would have been loaded without this one, by the text of workers. START is
# progress/start.py, which also takes away what brought this here.
problem = None
record(True)
try:
    exec(compile(START, "<dlrover-run>", "exec"))
except BaseException as error:
    problem = error
finally:
    record(False)
