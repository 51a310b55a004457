"""Says in three plain sentences what task=report, best_of_n or steps found."""

import math

MISSED = "takes {:.1%} of the first wrong steps for right, most of them of the kind {} ({:.0%} of {})"


def sentences(results: dict) -> list[str]:
    """What was solved, against what, and where the (first) verifier is blind; empty for other tasks' results."""
    if "oracle" not in results and "threshold" not in results:
        return []
    solved, against, blind = [], [], []
    run = next((run for run in results.get("runs", ()) if run.get("objective") != "orm"), None)
    if "oracle" in results:
        N, scorer = str(results["n_candidates"]), next(iter(results["headline"]))
        aggregator, name = (
            results["headline"][scorer],
            results["verifiers"].get(scorer, {}).get("verifier", scorer),
        )
        best, oracle = results["scorers"][scorer][aggregator]["best_of_n"][N], results["oracle"][N]
        solved.append(
            f"By the {aggregator} of its step scores {name} chooses a right answer to {best:.1%} of "
            f"{results['n_problems']} problems from {N} samples each, where one sample has {results['mean']:.1%}"
        )
        pair = f"{scorer}.{aggregator}.best_of_n", "majority"
        for x in (x for x in results["differences"] if (x["a"], x["b"], str(x["n"])) == (*pair, N)):
            points, low, high = (100 * number for number in (x["difference"], *x["interval"]))
            interval = f", 95 % interval {low:+.1f} to {high:+.1f}" if math.isfinite(low) else ""
            choice = f"{points:+.1f} points for the choice{interval}"
            against.append(f"the majority vote has {results['majority'][N]:.1%} ({choice})")
        against.append(f"a perfect choice {oracle:.1%}")
        blind.append(
            f"chooses a wrong answer to {oracle - best:.1%} of the problems though a right one is there"
        )
    if run and math.isfinite(run["step_auroc"]):
        n, whose = run["n_steps"], "its scores" if solved else f"the scores of {run['verifier']}"
        solved.append(
            f"{whose} tell right steps from wrong ones with an AUROC of {run['step_auroc']:.3f} ({n} steps)"
        )
        if baselines := run.get("baselines"):
            best = max(baselines, key=baselines.get)
            against.append(
                f"the best AUROC of what was never taught to verify is {baselines[best]:.3f} ({best})"
            )
        missed = {kind: x["n"] * x["missed"] for kind, x in run.get("errors", {}).get("kinds", {}).items()}
        if any(missed.values()):
            kinds, worst = run["errors"]["kinds"], max(missed, key=missed.get)
            share = sum(missed.values()) / sum(x["n"] for x in kinds.values())
            blind.append(MISSED.format(share, worst, kinds[worst]["missed"], kinds[worst]["n"]))
        elif math.isfinite(accuracy := run["first_error_accuracy_error"]):
            blind.append(
                f"does not find the first wrong step of {1 - accuracy:.1%} of the solutions that have one"
            )
            if math.isfinite(clean := run["first_error_accuracy_clean"]):
                blind.append(f"sees one in {1 - clean:.1%} of the others")
    starts = ("solved      ", solved), ("against     ", against), ("blind       It ", blind)
    texts = ((start, "; ".join(parts)) for start, parts in starts if parts)
    return [
        f"{start}{text if start.startswith('blind') else text[0].upper() + text[1:]}."
        for start, text in texts
    ]
