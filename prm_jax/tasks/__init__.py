"""The embedded tasks: problems without end, a solver that errs at known rates, and an exact check of every step.

A task is a module of this folder; TASKS names it for data.name=NAME and conf/data/NAME.yaml holds its keys. It offers

    Config                                              frozen dataclass of the keys of its section `task`
    make_solutions(cfg, n, split, seed, label_kind)     n labelled solutions by the solver, of the problems of one split:
                                                        train, validation, test or base, which share none
    step_labels(problem, steps)                         1.0 for each step that is right like all before it, else 0.0
    answer(problem)                                     the right final answer, a text
    lucky_share(solutions)                              share of the right answers that rest on a wrong step

step_labels and answer read texts alone, so they check anybody's solutions; InputError where a text is no problem of the task.
"""

from prm_jax.tasks import chain

TASKS = {"arithmetic": chain}
