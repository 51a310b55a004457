"""The drawings of the gallery, from results made up: each states seeds, cost and commit, and keeps its numbers in a table."""

import csv
import inspect
import json
import zlib

import numpy as np
import pytest

from prm_jax.figures import gallery, paper, pipeline, style
from prm_jax.figures.gallery import overoptimisation

NAMES = pipeline.names()


class Made:
    """A stage that is done, with results made up."""

    needs, config = (), {}

    def __init__(self, line, results, **sweep):
        self.line, self.sweep, self._results = line, sweep, results
        self.name = pipeline.label(line, sweep)
        self.digest = f"{zlib.crc32(self.name.encode()):08x}"
        self.folder = pipeline.Path(f"stages/{self.name}-{self.digest}")

    def results(self):
        return self._results

    def record(self):
        return {"seconds": 10.0, "cpu_seconds": 15.0, "resumed": False, "commit": "0123456789abcdef+"}


SEEDS, SIZES = (0, 1, 2), [1, 2, 4]


def pool_of(stages, level=0.0):
    """The results of a pool that these verifiers score: the i-th solves (i + n) % 5 / 10 + level at n."""
    verifiers = ["prm", *(f"prm_{i}" for i in range(1, len(stages)))]
    names = [*verifiers, "policy"]  # whose likelihood stands beside every verifier
    table = lambda i: {str(n): (i + n) % 5 / 10 + level for n in SIZES}
    kl = np.linspace(0, 2, 5).tolist()
    law = {"kl": kl, "accuracy": [0.5, 0.6, 0.65, 0.6, 0.5], "score": kl}
    best = {
        "kl": [0.0, 0.3, 1.0],
        "accuracy": [0.5, 0.5 + 0.3**0.5 * 0.2 - 0.03, 0.6],
        "score": [0, 1, 2],
        "n": SIZES,
    }
    pairs = [
        (f"{a}.prod.best_of_n", b)
        for a in names
        for b in ["majority", *(f"{x}.prod.best_of_n" for x in names)]
    ]
    numbers = {"difference": 0.25, "interval": [0.1, 0.3]}
    rules = ("best_of_n", "trace", "weighted_vote", "with_policy")
    return {
        "n_problems": 9, "n_candidates": 4, "mean": 0.4, "graded_both_ways": 0, "policy_weight": 0.5, "headline": dict.fromkeys(names, "prod"),
        "oracle": table(4), "majority": table(1),
        "verifiers": {a: {"verifier": f"{s.folder} step 5"} for a, s in zip(verifiers, stages, strict=True)},
        "scorers": {a: {how: {rule: table(i) for rule in rules} for how in ("prod", "min", "last", "sum_logit")}
                    for i, a in enumerate(names)},
        "calibration": {a: {"steps": {"auroc": 0.9, "ece": 0.02}} for a in names},
        "reward_kl": {a: {"reweighted": law, "best_of_n": best} for a in names},
        "differences": [{"a": a, "b": b, "n": n} | numbers for a, b in pairs for n in SIZES],
    }  # fmt: skip


def steps_of(ece):
    table = {"mean_score": [0.2, 0.8, None], "mean_label": [0.3, 0.7, None], "n": [5, 5, 0]}
    ways = {way: {"ece": ece, "reliability": table} for way in ("none", "temperature", "platt")}
    return {"runs": [{"reliability": table, "step_auroc": 0.9, "recalibrated": ways}]}


def search_of(seed):
    share = {"share": 0.5 + seed / 10, "interval": [0.4, 0.6]}
    best = share | {"by_difficulty": [share] * 3}
    minus = {"difference": 0.1, "interval": [0.0, 0.2]}
    rows = [{"method": m, "budget": b, "policy_tokens": b - 1, "best": best, "vote": best, "minus_best_of_n": minus}
            for b in (60, 120) for m in ("best_of_n", "beam")]  # fmt: skip
    about = {"problems": 9, "pass_at_1": 0.4, "difficulty_pass_at_1": [0.8, 0.4, 0.1], "searches": rows}
    return {"choice": "best", "verifiers": [about]}


def made_up_best_of_n():
    models = lambda seed: [Made(line, {}, seed=seed) for line in ("prm", "orm")]
    return {"pool": [Made("pool", pool_of(models(seed), 0.1 * seed), seed=seed) for seed in SEEDS]}


made_up_best_of_n_shift = made_up_best_of_n


def pools_by_seed(models, level=0.0):
    """A pool of each seed that scores the models of this seed, + `level` a seed."""
    own = lambda seed: [model for model in models if model.sweep["seed"] == seed]
    return [Made("pool", pool_of(own(seed), level * seed), seed=seed) for seed in SEEDS]


def made_up_supervision():
    kinds = "each step", "outcome by answer"
    models = [
        Made("verifier", {}, supervision=k, samples=n, seed=s)
        for k in kinds
        for n in (500, 16000)
        for s in SEEDS
    ]
    return {"verifier": models, "pool": pools_by_seed(models, 0.1)}


def made_up_overoptimisation():
    models = [Made("by_steps", {}, training=n, seed=s) for n in (50, 700) for s in SEEDS]
    return {"by_steps": models, "pool": pools_by_seed(models)}


def made_up_search():
    return {"search": [Made("search", search_of(seed), seed=seed) for seed in SEEDS]}


def made_up_shift():
    return {line: [Made(line, steps_of(0.1 + seed / 100), seed=seed) for seed in SEEDS]
            for line in ("home", "solver", "shifted")}  # fmt: skip


def made_up_real_pools():
    """Two models, one of them unknown; no scores are trained, so there is one run."""

    def stage(rule):
        names, hows, interval = ("qwen_prm", "mine"), ("min", "prod", "sum_logit"), [-0.1, 0.2]
        pair = lambda a, b, by=0.1: {
            "a": a,
            "b": b,
            "n": 4,
            "difference": by,
            "interval": [by - 0.2, by + 0.2],
            "p": 0.01 if by > 0 else 1.0,
        }
        best = lambda s, how: f"{s}.{how}.best_of_n"
        pairs = [pair(best(s, how), "majority", i / 4) for s in names for i, how in enumerate(hows)]
        pairs += [pair(best(s, how), best(s, rule), 0.3) for s in names for how in hows if how != rule]
        pool = pool_of([Made("x", {}), Made("y", {})])
        law = pool["reward_kl"]["prm"]
        more = {"pool": "p.jsonl", "differences": pairs, "scorers": {s: dict.fromkeys(hows) for s in names}}
        more |= {
            "reward_kl": dict.fromkeys(names, law),
            "length_correlation": {s: {"r": -0.2, "interval": interval} for s in names},
        }
        more["calibration"] = {s: {"solutions": {how: {"ece": 0.1} for how in hows[:2]}} for s in names}
        return Made("pool", pool | more, aggregator=rule)

    return {"pool": [stage(rule) for rule in ("min", "prod")]}


def test_real_pools_says_what_each_model_has_over_majority_by_its_authors_rule(tmp_path):
    _, table = paper.draw(gallery.drawing("real_pools"), "x", made_up_real_pools(), {}, tmp_path)
    says = json.loads((tmp_path / "figure.json").read_text())["says"]
    assert says[0].startswith(
        "Qwen2.5-Math-PRM-7B, prod: best of 4 - majority +0.250 [+0.050, +0.450], p 0.01; share right 0.650"
    )
    assert says[0].endswith("ECE 0.100; length -0.200 [-0.100, +0.200]") and says[1].startswith(
        "mine, prod: "
    )
    assert says[2].startswith("4 of 6 pairs of model and aggregator above majority, 0 below")
    assert says[3].startswith(
        "two aggregators of one model: 2 of 2 pairs differ by the same test: Qwen2.5-Math-PRM-7B min - prod +0.300 ["
    )
    rows = list(csv.DictReader(table.open()))
    assert sum(row["x"] == "sum_logit" for row in rows) == 2  # not drawn, but in the table


def made_up_objectives():
    models = [Made("verifier", {}, objective=kind, seed=s) for kind in ("BCE", "pairwise") for s in SEEDS]
    return {"verifier": models, "pool": pools_by_seed(models)}


def made_up_implicit():
    """AUROC .8 of every model, .85 of the policy's log p."""
    models = {line: [Made(line, {}, seed=s) for s in SEEDS] for line in ("explicit", "longer", "orm")}
    models["implicit"] = [Made("implicit", {}, form=f, seed=s) for f in ("CE, beta .5", "DPO") for s in SEEDS]
    every = [stage for line in models.values() for stage in line]
    numbers = {"n_solutions": 9, "auroc_correctness": 0.8}
    runs = [{"verifier": f"{s.folder} step 5"} | numbers for s in every]
    runs.append({"verifier": "policy"} | numbers | {"auroc_correctness": 0.85})
    return models | {"steps": [Made("steps", {"runs": runs})], "pool": pools_by_seed(every)}


def made_up_active_learning():
    cells = [
        (c, n, t, s) for c in ("uniform", "mined") for n in (1000, 4000) for t in (75, 350) for s in SEEDS
    ]
    models = [Made("verifier", {}, choice=c, samples=n, training=t, seed=s) for c, n, t, s in cells]
    counts = {
        c: {"solutions": 9, "steps": 30, "wrong_answers": 0.5, "unsound": 0.6} for c in ("uniform", "mined")
    }
    mining = [Made("mining", {"counts": counts}, samples=n, seed=s) for n in (1000, 4000) for s in SEEDS]
    selectors = [Made("selector", {"eval_step_auroc": 0.8}, seed=s) for s in SEEDS]
    return {"selector": selectors, "verifier": models, "mining": mining, "pool": pools_by_seed(models)}


def made_up_trace_error():
    rules = (
        "mean",
        "majority",
        *(f"{x}.{how}" for x in ("prm", "prm_1") for how in ("best_of_n", "weighted_vote")),
    )
    chosen = lambda seed: {
        "rules": {rule: {"final_error": 0.4 + seed / 50, "trace_error": 0.2} for rule in rules},
        "differences": [{"a": "prm.best_of_n", "b": "majority", "difference": -0.1, "interval": [-0.2, 0.0]}],
        "abstain": {"share": [0.0, 0.5], "error": {key: [0.4, 0.2] for key in rules[1:]}},
        "agreement": {"labels": 0.7, "prm": {"correctness": 0.9, "outcome": 0.7}},
    }
    made = made_up_best_of_n()
    for stage in made["pool"]:
        stage._results |= {"chosen": chosen(stage.sweep["seed"])}
    return made


def made_up_token_level(tmp_path):
    loss = lambda step: json.dumps({"step": step, "eval_loss": 1 / step}) + "\n"
    models = [
        Made("verifier", {}, at=a, training=n, seed=s)
        for a in ("every token", "the end")
        for n in (100, 700)
        for s in SEEDS
    ]
    for model in models:
        model.folder = tmp_path / model.folder
        model.folder.mkdir(parents=True)
        (model.folder / "metrics.jsonl").write_text(json.dumps({"step": 10}) + "\n" + loss(100) + loss(200))
    pools = pools_by_seed(models)
    for stage in pools:
        stage._results["calibration"] = {
            name: {"solutions": {"prod": {"auroc": 0.7}}} for name in stage._results["scorers"]
        }
    return {"verifier": models, "pool": pools}


def exact_runs(models):
    row = {"n": 60, "bias": 0.1, "error": 0.2, "constant": 0.3}
    depth = {side: {"1": row, "2": row, "9": row | {"n": 3}} for side in ("done", "left")}
    numbers = {
        "auroc_correctness": 0.9,
        "auroc_value": 0.6,
        "auroc_value_ceiling": 0.8,
        "n_solutions": 9,
        "value_depth": depth,
    }
    return {"runs": [{"verifier": f"{m.folder} step 5"} | numbers for m in models]}


def made_up_mc_labels():
    models = {kind: [Made(kind, {}, seed=s) for s in SEEDS] for kind in ("exact", "soft_8", "hard_8_noisy")}
    pool = pool_of([m for own in models.values() for m in own])
    for table in pool["scorers"].values():
        table.update({how: table["prod"] for how in ("last", "min", "mean")})
    steps = [Made("steps", exact_runs(models["exact"] + models["soft_8"]))]
    more = [Made("more_steps", exact_runs(models["hard_8_noisy"]))]
    return models | {"steps": steps, "more_steps": more, "pool": [Made("pool", pool)]}


made_up_consensus = made_up_mc_labels


def made_up_value_depth():
    models = {kind: [Made(kind, {}, seed=s) for s in SEEDS] for kind in ("exact", "td")}
    return models | {"steps": [Made("steps", exact_runs([m for own in models.values() for m in own]))]}


def made_up_critics():
    """Balanced accuracy on plain lines .7 of the PRM, .6 of the verdict alone, .8 and .9 of a critic by its votes; of merged ones .1 less."""
    lines = lambda x: {
        kind: {"n": 90, "wrong": 9, "balanced": y, "auroc": y}
        for kind, y in (("plain", x), ("merged", x - 0.1))
    }
    told = lambda n: {
        "critic": {
            "format": {"critic": {"votes": n}},
            "tokens": 120 * n,
            "critiques": 10 * n,
            "no_verdict": 1,
        }
    }
    run = lambda stage, x, **more: (
        {"verifier": f"{stage.folder} step 5", "n_solutions": 9, "lines": lines(x)} | more
    )
    writes, alone = ([Made("critic", {}, writes=w, seed=s) for s in SEEDS] for w in ("hops", "verdict"))
    prms = [Made("prm", {}, seed=s) for s in SEEDS]
    by_votes = lambda n, x: {
        "runs": [*(run(c, x, **told(n)) for c in writes), *(run(c, 0.6, **told(n)) for c in alone)]
    }
    scored = {"runs": [*(run(prm, 0.7) for prm in prms), {"lines": lines(0.75)}]}
    results = {
        "judged": by_votes(1, 0.8),
        "voted": by_votes(16, 0.9),
        "scored": scored,
        "itself": {"runs": [{"lines": lines(0.5)}]},
    }
    return {"critic": writes + alone, "prm": prms} | {line: [Made(line, x)] for line, x in results.items()}


def made_up_rl(tmp_path, gains=(("checker", 0.2), ("PRM, min form", 0.2))):
    names = "pass_at_1", "sound", "reward", "steps_a_solution", "restated", "kl", "entropy"
    row, scores = (
        {"policy_tokens": 10_000, "total_policy_tokens": 30_000},
        dict.fromkeys([f"eval_{name}" for name in names], 0.5),
    )
    prm = Made("prm", {"counts": {"policy_tokens": 15_000}})
    models = [
        Made("policy", {"gain": gain + s / 100}, reward=kind, seed=s) for kind, gain in gains for s in SEEDS
    ]
    for model in models:
        model.needs = (prm,)
        model.config = {"reward.prm_checkpoint": f"{prm.name}-{prm.digest}"} if "PRM" in model.name else {}
        model.folder = tmp_path / model.folder
        model.folder.mkdir(parents=True)
        by = model.results()["gain"] if len(gains) > 2 else 0.2
        last = row | {"step": 3} | {name: x + by for name, x in scores.items()}
        rows = [{"step": 0} | scores, last]  # log_every=3
        (model.folder / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in rows))
    return {"policy": models}


made_up_hacking = made_up_rl


def made_up_attack():
    """Each arm's AUROC is .9, .6 after the worst edit of default and .7 of the others, + .01 a seed; the checker's 1."""
    table = lambda x: {"auroc": x, "unsound_accepted": 0.1, "sound_refused": 0.2}
    result = lambda before, worst: {"solutions": 9, "sound": 4, "before": table(before),
                                    "edits": {"drop": table(worst), "worst": table(worst), "worst_wrong_line": table(before)}}  # fmt: skip
    arms = "default", "hardened", "all edited"
    runs = [
        Made("attack", result(0.9, 0.7 - 0.1 * (arm == "default") + 0.01 * s), training=arm, seed=s)
        for arm in arms
        for s in SEEDS
    ]
    return {"attack": runs, "checker": [Made("checker", result(1.0, 0.85))]}


def made_up_bounds():
    """Coverage .8 as learned and .9 moved; at n = 4 and 8 .5 and .6 solved, .02 more with N a problem, + .01 a seed."""
    way = lambda x: {"seen": [0.1, 0.5, x], "all": {"coverage": x, "width": 0.4}}
    steps = [
        Made(
            "steps",
            {"runs": [{"bounds": {"of": "exact values", "raw": way(0.8 + s / 100), "now": way(0.9)}}]},
            seed=s,
        )
        for s in SEEDS
    ]
    rules = lambda s: {
        "best_of_n": {"2": 0.4, "4": 0.5, "8": 0.6},
        "adaptive_by_prm_1_lower": {"4": 0.52 + s / 100, "8": 0.62 + s / 100},
    }
    pools = [
        Made(
            "pool",
            {
                "n_problems": 9,
                "verifiers": {"prm": {}, "prm_1": {}},
                "headline": {"prm": "prod"},
                "scorers": {"prm": {"prod": rules(s)}},
            },
            seed=s,
        )
        for s in SEEDS
    ]
    return {"steps": steps, "pool": pools}


def runs_and_likelihood(numbers):
    """A stage that has measured a PRM of each seed by numbers(seed), and the policy's likelihood by numbers(None)."""
    runs = [numbers(seed) for seed in (*SEEDS, None)]
    return {"prm": [Made("prm", {}, seed=seed) for seed in SEEDS], "home": [Made("home", {"runs": runs})]}


def made_up_blind_spots():
    """Of 4 wrong * the PRMs miss .1 and the likelihood .7; of max (1) and min (3) 1 and 0, the likelihood 0."""
    row = lambda n, x: {"n": n, "missed": x / 2, "missed_at_equal_refusals": x}
    prm = lambda s: {
        "*": row(4, 0.1 + s / 100),
        "max": row(1, 1.0),
        "min": row(3, 0.0),
        "merged": row(2, 0.2),
    }
    kinds = lambda s: (
        {k: row(2, 0.7 * (k == "*")) for k in ("*", "max", "min", "merged")} if s is None else prm(s)
    )
    lines = {"merged": {"auroc": 0.9}}
    return runs_and_likelihood(lambda s: {"errors": {"kinds": kinds(s)}, "lines": lines})


def made_up_threshold():
    """F1 is highest at .3 on one half of the problems and at .5 on the other; on longer problems at .1."""
    f1 = lambda best, top: [round(top - abs(x - best), 6) for x in (0.1, 0.3, 0.5)]
    curve = lambda best, top: {
        "threshold": [0.1, 0.3, 0.5], "all": f1(best, top), "halves": [f1(best, top), f1(best + 0.2, top)]
    }  # fmt: skip
    top = lambda s: 0.6 if s is None else 0.8 + s / 100
    made = runs_and_likelihood(lambda s: {"f1_by_threshold": curve(0.3, top(s))})
    longer = [{"f1_by_threshold": curve(0.1, top(s))} for s in (*SEEDS, None)]
    return made | {"longer": [Made("longer", {"runs": longer})]}


def made_up_labels_k(tmp_path, prompt="4 +5 *3 mod7?"):
    """Labels of 8, and of 2 by bisection, tokens a line of a solution with a wrong answer; of K = 4 and 64 .1 and .2 are wrong."""
    error = lambda x: dict.fromkeys(("any", "half", "soft", "wrong_called_good", "right_called_bad"), x)
    table = lambda s: {
        "4": error(0.1),
        "8": error(0.1),
        "64": error(0.2 + s / 100),
        "constant": {"any": 0.3, "soft": 0.4},
    }
    made = {"exact": [Made("exact", {"runs": [{"label_errors": table(s)}]}, seed=s) for s in SEEDS]}
    for line, tokens in (("every", 8), ("bisected", 2)):
        made[line] = [Made(line, {})]
        made[line][0].folder = folder = tmp_path / line
        folder.mkdir()
        row = lambda i, wrong, tokens=tokens: {
            "id": str(i), "prompt": prompt, "labels": [1.0, None if wrong else 1.0], "outcome": 1.0 - wrong,
            "policy_tokens": tokens,
        }  # fmt: skip
        (folder / "labels.jsonl").write_text("".join(json.dumps(row(i, i < 2)) + "\n" for i in range(3)))
    return made


def says_of(name, stages, folder):
    """What a figure says of made-up results, its declared differences last, and its table."""
    declared = pipeline.read_definition(name).compare
    _, table = paper.draw(gallery.drawing(name), name, stages, {}, folder, declared)
    return json.loads((folder / "figure.json").read_text())["says"], list(csv.DictReader(table.open()))


def test_blind_spots_pool_kinds_by_their_errors_and_compare_with_the_likelihood(tmp_path):
    says, rows = says_of("blind_spots", made_up_blind_spots(), tmp_path)
    pooled = next(row for row in rows if (row["panel"], row["series"]) == ("max or min", "PRM"))
    assert float(pooled["y"]) == 0.25
    assert (
        "primary: hidden value: PRM - likelihood: +0.200 [+0.200, +0.200], p 0.250 (lowest to highest, 3 runs)"
        in says
    )
    assert any(line.startswith("secondary: *: PRM - likelihood: -0.590 [-0.600, -0.580]") for line in says)


def test_threshold_is_measured_where_it_was_not_chosen(tmp_path):
    says, rows = says_of("threshold", made_up_threshold(), tmp_path)
    y = {(row["panel"], row["series"]): float(row["y"]) for row in rows}
    # At home each half's best lies .2 off the other's; .3 from home costs .2 on longer problems, whose halves differ by .2.
    assert y["its own task", "PRM, chosen here"] == pytest.approx(0.61)
    assert y["longer problems", "PRM, chosen at home"] == pytest.approx(0.61)
    assert y["longer problems", "PRM, threshold that is best"] == pytest.approx(0.1)
    assert "primary: longer problems: PRM, chosen here - PRM, chosen at home: +0.000" in " ".join(says)
    assert any(
        line.startswith("secondary: its own task: PRM, chosen here - likelihood, chosen here: +0.210")
        for line in says
    )


def test_labels_k_counts_tokens_of_wrong_answers_alone(tmp_path):
    says, rows = says_of("labels_k", made_up_labels_k(tmp_path), tmp_path / "figure")
    cost = {
        row["series"]: (float(row["x"]), float(row["y"])) for row in rows if row["panel"] == "tokens a label"
    }
    assert cost == {"all lines": (2, 8), "bisection": (2, 2)}  # one label of two in each wrong solution
    assert any(
        line.startswith("primary: error of a label: any right, K = 64 - any right, K = 4: +0.110")
        for line in says
    )


def test_labels_k_takes_any_number_of_operations(tmp_path):
    _, rows = says_of("labels_k", made_up_labels_k(tmp_path, f"4{' +1' * 12} mod7?"), tmp_path / "figure")
    assert {float(row["x"]) for row in rows if row["panel"] == "tokens a label"} == {12}


def test_one_run_with_few_steps_at_every_depth_is_drawn(tmp_path):
    models = [Made("exact", {}, seed=0)]
    stages = {"exact": models, "steps": [Made("steps", exact_runs(models))]}
    for depths in stages["steps"][0].results()["runs"][0]["value_depth"].values():
        depths.update({d: row | {"n": 3} for d, row in depths.items()})
    _, table = paper.draw(gallery.drawing("value_depth"), "x", stages, {}, tmp_path)
    assert len(table.read_text().splitlines()) == 1


def test_critics_are_compared_with_verdicts_alone_and_their_tokens_are_those_of_all_votes(tmp_path):
    says, _ = says_of("critics", made_up_critics(), tmp_path)
    assert says[2].endswith("critic, 16 votes 0.800, the policy's P(Yes) 0.400, the policy's log p 0.650")
    assert says[4] == "critic, 16 votes: 192.0 tokens a step, 3 of 480 without a verdict"
    assert any(
        x.startswith("primary: merged lines: critic, 1 vote - critic, verdict alone: +0.200 [") for x in says
    )


def test_objectives_stand_beside_the_likelihood_and_rankings_have_no_ece(tmp_path):
    says, rows = says_of("objectives", made_up_objectives(), tmp_path)
    assert [row["series"] for row in rows if row["panel"] == "ECE"] == ["BCE"]
    assert any(x.startswith("secondary: step AUROC: BCE - the policy's likelihood: +0.000 [") for x in says)


def test_implicit_is_compared_with_log_p_and_supervision_with_pools_of_its_own_seed(tmp_path):
    says, _ = says_of("implicit", made_up_implicit(), tmp_path / "a")
    assert any(
        x.startswith("secondary: step AUROC: implicit, CE, beta .5 - the policy's log p: -0.050 [")
        for x in says
    )
    says, rows = says_of("supervision", made_up_supervision(), tmp_path / "b")
    # Of four models a seed: at n = 4 the second of them solves 0, + .1 a seed, and the fourth .2.
    assert [row["values"] for row in rows if row["panel"] == "solved" and row["x"] == "16000.0"] == [
        "0 0.1 0.2",
        "0.2 0.3 0.4",
    ]
    assert (
        "primary: solved at 16000: each step - outcome by answer: -0.200 [-0.200, -0.200], p 0.250"
        in " ".join(says)
    )


def test_attack_compares_the_falls(tmp_path):
    paper.draw(
        gallery.drawing("attack"),
        "x",
        made_up_attack(),
        {},
        tmp_path,
        pipeline.read_definition("attack").compare,
    )
    says = json.loads((tmp_path / "figure.json").read_text())["says"]
    assert (
        says[3].startswith("the exact checker: AUROC without edits")
        and "fall of AUROC, worst edit +0.150" in says[3]
    )
    assert (
        "primary: fall of AUROC, worst edit: default - hardened: +0.100 [+0.100, +0.100], p 0.250" in says[6]
    )
    assert (
        sum(line.startswith("secondary") for line in says) == 3
        and sum(line.startswith("left out") for line in says) == 4
    )


def test_rl_says_what_is_gained_and_what_its_verifier_cost(tmp_path):
    _, table = paper.draw(gallery.drawing("rl"), "x", made_up_rl(tmp_path), {}, tmp_path / "figure")
    about = json.loads((tmp_path / "figure" / "figure.json").read_text())
    assert about["says"][0].startswith(
        "checker: right (gold) 0.500 -> 0.700, +0.200 [+0.200, +0.200]; right, no"
    )
    rows = [
        r for r in csv.DictReader(table.open()) if r["series"] == "checker" and r["panel"] == "right (gold)"
    ]
    assert [float(r["x"]) for r in rows] == [0, 30]
    assert (
        about["says"][1].endswith("; the PRM's samples cost 15 thousand tokens") and len(about["says"]) == 2
    )


def test_rl_compares_arms_by_seed_and_counts_what_the_verifier_cost(tmp_path):
    gains = ("checker (RLOO)", 0.2), ("PRM + checker (PURE)", 0.3), ("checker (GRPO)", 0.2)
    declared, stages = pipeline.read_definition("rl").compare, made_up_rl(tmp_path, gains)
    _, table = paper.draw(gallery.drawing("rl"), "x", stages, {}, tmp_path / "figure", declared)
    says = json.loads((tmp_path / "figure" / "figure.json").read_text())["says"][3:]
    # At equal tokens half of the run is left to the PRM's policy, after 15 of 30 thousand: .15 to .16 of .3 to .32.
    told = [
        "primary: right (gold): PRM + checker (PURE) - checker (RLOO): +0.100 [+0.100, +0.100], p 0.250",
        "secondary: right (gold): PRM + checker (PURE) at equal tokens - checker (RLOO): -0.055 [-0.060, -0.050], p 0.250, by Holm 0.500",
        "secondary: right (gold): checker (GRPO) - checker (RLOO): +0.000 [+0.000, +0.000], p 1.000, by Holm 1.000",
    ]
    assert says[:3] == [f"{line} (lowest to highest, 3 runs)" for line in told]
    assert says[3] == "left out: right (gold): PRIME by steps - checker (as PRIME): no such rows in the table"
    rows = [row for row in csv.DictReader(table.open()) if row["panel"] == "difference of right (gold)"]
    assert [float(row["y"]) for row in rows] == pytest.approx([0.1, -0.055, 0.0])


def test_an_interval_over_seeds_needs_eight_of_them():
    # 0 .. 7: sd 2.4495, t of 7 degrees of freedom 2.3646
    assert np.ravel(style.over_seeds(np.arange(8.0)[:, None])) == pytest.approx(
        [3.5, 3.5 - 2.0478, 3.5 + 2.0478], abs=1e-4
    )
    assert np.ravel(style.over_seeds(np.arange(7.0)[:, None])) == pytest.approx([3.0, 0.0, 6.0])


@pytest.mark.parametrize("name", NAMES)
def test_every_drawing_states_seeds_cost_commit_and_keeps_its_numbers(name, tmp_path, capsys):
    made_up = globals()[f"made_up_{name}"]
    stages = made_up(tmp_path) if "tmp_path" in inspect.signature(made_up).parameters else made_up()
    figure = pipeline.read_definition(name)
    png, table = paper.draw(
        gallery.drawing(figure.draw), name, stages, {"steps": "3"}, tmp_path / name, figure.compare
    )
    assert png.stat().st_size < 150_000 and (tmp_path / name / f"{name}.pdf").exists()
    rows = list(csv.DictReader(table.open()))
    about = json.loads((tmp_path / name / "figure.json").read_text())
    trained = not figure.data  # stored scores are one run, whose seed is the bootstrap's
    values = [row["values"].split() for row in rows]
    n_values = {len(own) for own in values}  # a line of no training, as the exact checker's, has one
    assert rows and max(n_values) == (3 if trained else 1) and n_values <= {1, 3}
    assert [int(row["runs"]) for row in rows] == [sum(x != "nan" for x in own) for own in values]
    assert about["commits"] == ["0123456789+"] and about["seeds"] == (
        "seeds 0, 1, 2" if trained else "seed 0"
    )
    assert about["command"] == f"name={name} steps=3" and about["seconds"] == 10 * len(about["stages"])
    assert about["cpu_seconds"] == 15 * len(about["stages"])
    assert about["says"] and all(
        f"says        {line}" in capsys.readouterr().out for line in about["says"][:1]
    )


def test_a_drawing_has_the_mean_of_the_runs_and_their_range(tmp_path):
    _, table = paper.draw(gallery.drawing("best_of_n"), "x", made_up_best_of_n(), {}, tmp_path)
    row = next(r for r in csv.DictReader(table.open()) if r["series"] == "PRM (prod)" and r["x"] == "2.0")
    assert [float(row[key]) for key in ("y", "low", "high")] == pytest.approx([0.3, 0.2, 0.4])
    drawn = gallery.drawing("best_of_n")(made_up_best_of_n())  # of more than two scorers
    assert drawn.spread == "thin lines: runs, beside the curves, at n = 4: 95 % t intervals of their mean"
    fit = overoptimisation.gao_fit(
        {"kl": [0.0, 0.25, 1.0, 4.0], "accuracy": [0.5, 0.5 + 0.5 * 0.2, 0.5 + 0.1, 0.5 - 2 * 0.1]}
    )
    assert fit == pytest.approx([0.3, 0.2])
