"""Critics as scorers: votes and their keys, no verdict, what rerank and search ask of a verifier."""

import copy
import dataclasses
import json
import runpy

import jax.numpy as jnp
import numpy as np
import pytest
from conftest import ROOT, printed

import evaluate
from examples.critic_rows import critiques, written_out
from prm_jax.checkpoints.names import OpenOptions, members_of, needs_folder, open_verifier, with_format
from prm_jax.checkpoints.open import open_checkpoint
from prm_jax.critics.critic import LocalCritic, combine
from prm_jax.critics.prompts import CriticFormat, prompt_text, with_critic
from prm_jax.data.writing import native_row, score_into
from prm_jax.formats import Format, read_format
from prm_jax.solutions import Solution

# The embedded policy as a critic: it goes on with the solution, and of the last result that it writes 4 is
# good and 2 is bad. So it comes to a verdict often and not always, and its critiques differ.
ENDS_IN = Format(
    "ends_in", good="4", bad="2", label_kind="correctness",
    critic=CriticFormat(prompt="{problem}{steps}\n", verdict="=", max_tokens=40, votes=4, unscored=0.25, rows=64),
)  # fmt: skip
PROBLEM, OTHER = "4 +5 *3 max2 -2 mod7?", "6 *5 -4 +3 +1 mod7?"
ROWS = [
    (PROBLEM, ("4+5=2", "2*3=6")),
    (OTHER, ("6*5=2",)),
    (PROBLEM, ("4+5=2", "2*3=1")),
    (OTHER, ("6*5=2",)),
]


def changed(fmt, **more):
    return dataclasses.replace(fmt, critic=dataclasses.replace(fmt.critic, **more))


# No critique: the verdict is read behind the prompt.
AT_ONCE = read_format("lab_critic", critic={"max_tokens": 0, "force": ""})


@pytest.fixture(scope="module")
def loaded():
    return open_checkpoint("embedded", "best", None, "float32")


@pytest.fixture
def critic(loaded):
    def make(seed=0, **more):
        fmt = changed(ENDS_IN, **more)
        return LocalCritic(loaded, "embedded", fmt, 2, None, seed)

    return make


def votes_of(critic):
    return {prefix: [draft.logit for draft in drafts] for prefix, drafts in critic.known.items()}


def test_a_vote_is_the_same_whatever_is_scored_beside_it(critic):
    together = critic()
    scores = together.score(ROWS)
    assert [s.shape for s in scores] == [(2,), (1,), (2,), (1,)] and scores[0].dtype == np.float32
    votes = votes_of(together)
    assert len(votes) == 4 and together.stats.critiques == 16  # a prefix is judged once
    assert scores[1] == scores[3] and scores[0][0] == scores[2][0]
    alone = critic(votes=3)
    for row in ROWS[2::-1]:
        alone.score([row])
    for prefix, logit_N in votes.items():
        np.testing.assert_allclose(logit_N[:3], votes_of(alone)[prefix], atol=2e-5)  # NaN where NaN
        given = [x for x in logit_N if not np.isnan(x)]
        mean = np.mean([1 / (1 + np.exp(-x)) for x in given]) if given else 0.25
        assert abs(together.score([prefix])[0][-1] - np.log(mean / (1 - mean))) < 1e-4
    flat = np.array([*votes.values()])
    assert 0 < np.isnan(flat).sum() == together.stats.no_verdict < 16
    assert len({round(x, 3) for x in flat[~np.isnan(flat)]}) > 3  # votes differ
    other = critic(seed=1)
    other.score(ROWS)
    assert not np.allclose(list(votes_of(other).values()), list(votes.values()), equal_nan=True)


def test_votes_are_combined():
    logit = lambda p: float(np.log(p / (1 - p)))
    votes = np.array([logit(0.9), logit(0.6), logit(0.3)])
    assert combine(votes) == pytest.approx(logit(0.6), abs=1e-6)
    assert combine(np.array([1.7])) == pytest.approx(1.7, abs=1e-9)
    # No probability of 1.
    assert combine(np.array([50.0, 60.0])) == pytest.approx(50 + np.log(2), abs=1e-3)


def test_what_a_critic_has_written_is_kept_when_it_is_stopped(critic, tmp_path, monkeypatch):
    rows, file = ROWS[:3], tmp_path / "scores.jsonl"
    solutions = [Solution(*row, id=str(i)) for i, row in enumerate(rows)]
    stopped = critic(rows=4)  # of four votes: a solution at a time
    ask, asked = stopped.judge, []
    monkeypatch.setattr(stopped, "judge", lambda prefixes: ask(prefixes) if len(asked) < 2 else 1 / 0)
    monkeypatch.setattr(stopped, "decide", lambda votes, of=stopped.decide: asked.append(votes) or of(votes))
    with pytest.raises(ZeroDivisionError):
        score_into(file, stopped, iter(solutions), 3)
    kept = file.read_text()
    assert [json.loads(line)["id"] for line in kept.splitlines()] == ["0"]
    again = critic(rows=4)
    scores = list(score_into(file, again, iter(solutions), 3))
    assert file.read_text().startswith(kept) and again.stats.solutions == 2
    for score_T, whole_T in zip(scores, critic(rows=64).score(rows), strict=True):
        np.testing.assert_allclose(score_T, whole_T, atol=1e-4)


def test_asked_at_once_it_writes_nothing(loaded):
    scorer = open_verifier("embedded", OpenOptions(format=AT_ONCE))
    (score_T, _) = scorer.score([(PROBLEM, ("4+5=2", "2*3=6")), (OTHER, ("6*5=2",))])
    assert scorer.stats.tokens == 0 and scorer.stats.critiques == 3 and np.isfinite(score_T).all()
    assert (scorer.objective, scorer.unit, scorer.label_kind) == ("prm", "logit", "correctness")
    assert float(score_T[1]) == pytest.approx(yes_no(loaded, f"{PROBLEM}4+5=2\n2*3=6\n?"), abs=1e-4)


def yes_no(loaded, text):
    """Logit of Y less that of N after the text, by the model alone."""
    ids = loaded.tokenizer.encode(text, add_special_tokens=False)
    x_BLD = loaded.model(*(jnp.asarray(x)[None] for x in (ids, range(len(ids)), [len(ids)] * len(ids))))
    logit_V = loaded.model.vocab_logits(x_BLD)[0, -1]
    good, bad = (loaded.tokenizer.convert_tokens_to_ids(x) for x in "YN")
    return float(logit_V[good] - logit_V[bad])


def test_it_reranks_searches_and_scores_as_a_prm_does(monkeypatch, tmp_path):
    at_once = ["format.critic.max_tokens=0", "format.critic.force=''"]
    critic = ["checkpoint=embedded", "format=lab_critic", *at_once]

    def call(main, folder, *words):
        """What the command prints, and a function that reads the lines of a file that it writes."""
        out = printed(main, monkeypatch, *critic, *words, f"hydra.run.dir={tmp_path}/{folder}", cwd=tmp_path)
        return out, lambda name: list(map(json.loads, next((tmp_path / folder).glob(name)).open()))

    words = ["fresh.problems=4", "fresh.candidates=4", "fresh.outcome_model=null", "data.samples=solver"]
    out, read_pool = call(evaluate.main, "pool", "task=best_of_n", "data=chain", *words)
    assert "criticised  16 solutions" in out
    results = json.loads((tmp_path / "pool" / "results.json").read_text())
    (about,) = results["verifiers"].values()
    assert about["critic"]["tokens"] == 0 and about["critic"]["format"]["name"] == "lab_critic"
    pool = tmp_path / "pool" / "pool.jsonl.gz"
    _, read = call(evaluate.main, "score", "task=score", f"input={pool}")
    for a, b in zip(read("scores.jsonl"), read_pool("pool_scores_*.jsonl"), strict=True):
        np.testing.assert_allclose(a["scores"], b["scores"], atol=1e-5)
    words = ["methods=[beam]", "budgets=[60]", "problems=2", "samples=2", "data.samples=policy"]
    call(evaluate.main, "search", "task=search", "data=chain", *words)
    (verifier,) = json.loads((tmp_path / "search" / "results.json").read_text())["verifiers"]
    assert verifier["searches"][0]["best"]["share"] >= 0 and verifier["critic"]["critiques"] > 0


def test_a_critique_ends_with_its_turn(loaded):
    tokenizer = copy.deepcopy(loaded.tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<end>"]})
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}<end>{% endfor %}"
    fmt = dataclasses.replace(ENDS_IN, chat=True)
    critic = LocalCritic(dataclasses.replace(loaded, tokenizer=tokenizer), "embedded", fmt, 2, None)
    assert tokenizer.convert_tokens_to_ids("<end>") in critic.policy.eos_ids


def test_beside_critics_a_prm_keeps_its_own_format(capsys):
    scorer = open_verifier("embedded_orm", OpenOptions(format=read_format("lab_critic")))
    assert scorer.objective == "orm" and "has a step head, so it is no critic" in capsys.readouterr().out


def test_a_verifier_is_named_with_its_format_where_others_are_read_otherwise():
    assert with_format("lab_critic:embedded") == (read_format("lab_critic"), "embedded")
    assert with_format("judge:http://localhost:9")[1] == "http://localhost:9"
    for name in ("http://localhost:9", "runs/a:b", "checker-0.05-3"):
        assert with_format(name) == (None, name)
    assert with_format("trl:runs/a") == (read_format("trl"), "runs/a")
    assert members_of("mean:[trl:a, b]") == ["a", "b"] and members_of("trl:a") == ["a"]
    assert needs_folder("runs/a")
    assert not any(map(needs_folder, ("lab_critic:runs/a", "http://x", "random")))
    scorer = open_verifier("lab_critic:embedded", OpenOptions(format=read_format("auto")))
    assert scorer.name.endswith(", lab_critic, 1 vote")


def test_critiques_of_the_lab_write_out_what_a_line_hides(monkeypatch, tmp_path):
    problem, steps = "4 +5 *3 max2 -2 mod7?", ("4+5*3=6", "6max2=6", "6-2=5")
    assert written_out(problem, steps) == [["4+5=2", "2*3=6"], ["6max2=6"], ["6-2=4"]]
    # A wrong first value, a wrong operation and a line that is none: what should have stood there.
    assert written_out(problem, ("3+5=1", "1-3=5", "?")) == [["4+5=2"], ["1*3=3"], ["5max2=5"]]
    solution = Solution(problem, steps, labels=(1.0, None, 0.0), task="chain")
    first, last = critiques(solution, "hops")
    assert (first["prompt"], first["completions"]) == (problem + "4+5*3=6\n?", ["4+5=2", "2*3=6", "Yes"])
    assert last["completions"] == ["6-2=4", "No"]
    source, target = tmp_path / "solutions.jsonl", tmp_path / "critiques.jsonl"
    source.write_text(json.dumps(native_row(solution)))
    monkeypatch.setattr("sys.argv", ["critic_rows", str(source), str(target), "verdict"])
    runpy.run_path(ROOT / "examples/critic_rows.py", run_name="__main__")  # a module would be imported twice
    assert [json.loads(line)["completions"] for line in target.open()] == [["Yes"], ["No"]]
    fmt = with_critic(read_format("lab_critic"))
    assert prompt_text(fmt, None, problem, steps[:2]) == "4 +5 *3 max2 -2 mod7?4+5*3=6\n6max2=6\n?"
