"""The witness's published numbers, to 1e-5, its plane against single calls and closed forms, and its page in a browser."""

import json
import math
import re
import shutil

import jax
import numpy as np
import pytest
from conftest import ROOT, printed

import evaluate
from prm_jax import rerank, witness
from prm_jax.evals import witness as task

PUBLISHED = {
    "outcome": [0.356434, 0.640206, 0.002328, 0.001032],
    "process": [0.994370, 0.000012, 0.005584, 0.000034],
    "hacked": [0.038597, 0.961184, 0.000217, 0.000001],
}
WINNERS = {"outcome": "lucky_final", "process": "clean", "hacked": "lucky_final"}


def test_policies_and_winners_of_the_seed():
    got = witness.results()
    for verifier, policy_N in PUBLISHED.items():
        np.testing.assert_allclose(got["policies"][verifier], policy_N, atol=1e-5)
    assert got["winners"] == WINNERS
    # expected score and KL, papers.md 10
    np.testing.assert_allclose(
        [got["reward"][v] for v in witness.VERIFIERS], [2.205, 4.880, 7.271], atol=1e-3
    )
    np.testing.assert_allclose([got["kl"][v] for v in witness.VERIFIERS], [0.729, 1.169, 1.337], atol=1e-3)
    assert json.loads(json.dumps(got)) == got


def test_scores_of_the_seed():
    np.testing.assert_allclose(witness.score("outcome"), [1.815, 2.442, -1.658, -1.992], atol=1e-3)
    np.testing.assert_allclose(witness.score("process"), [4.900, -2.811, 1.321, -2.005], atol=1e-3)
    np.testing.assert_allclose(witness.score("hacked"), [4.900, 7.368, 1.321, -2.005], atol=1e-3)
    np.testing.assert_allclose(witness.score("process", "prod"), [-0.167, -3.260, -1.587, -2.659], atol=1e-3)
    for how in [
        name for name, x in rerank.AGGREGATORS.items() if x.is_log_probability
    ]:  # of one step: all alike
        np.testing.assert_allclose(witness.score("outcome", how), np.log(witness.OUTCOME_P_N), rtol=1e-5)


def test_with_the_product_the_hacked_trace_wins_only_at_small_beta():
    """Its prior is lower: it overtakes clean below beta = difference of log products / log(.30 / .22), about .37."""
    law = witness.results("prod")
    np.testing.assert_allclose(law["policies"]["process"], [0.8691, 0.0077, 0.1067, 0.0165], atol=1e-4)
    np.testing.assert_allclose(law["policies"]["hacked"], [0.4981, 0.4313, 0.0612, 0.0094], atol=1e-4)
    assert law["winners"]["hacked"] == "clean"
    turn = math.log(0.98 * 0.97 / (0.93 * 0.91)) / math.log(0.30 / 0.22)
    assert turn == pytest.approx(0.37, abs=0.005)
    winner_b = witness.plane(np.array([0.99 * turn, 1.01 * turn]), np.array([1.0]), ("prod",)).winner_hbe[
        0, :, 0
    ]
    assert [witness.TRACES[i] for i in winner_b] == ["lucky_final", "clean"]


def test_plane_is_the_single_calls():
    beta_b, error_e = np.array([0.0, 0.2, witness.BETA, np.inf]), np.array([0.0, 0.5, 1.0])
    plane = witness.plane(beta_b, error_e)
    sizes = (len(rerank.AGGREGATORS), 4, 3)
    assert plane.weight_hbeN.shape == (*sizes, 4) and plane.winner_hbe.shape == sizes
    for h, how in enumerate(rerank.AGGREGATORS):
        for e, error in enumerate(error_e):
            score_N = witness.score("process", how, error * (np.arange(4) == witness.HACKED_TRACE))
            np.testing.assert_allclose(plane.score_heN[h, e], score_N, rtol=1e-5, atol=1e-6)
            for b, beta in enumerate(beta_b):
                law = witness.policy(score_N, beta)
                np.testing.assert_allclose(plane.weight_hbeN[h, b, e], law.weight_PN[0], atol=2e-6)
                np.testing.assert_allclose(plane.kl_hbe[h, b, e], law.kl_P[0], atol=5e-6)
    h = list(rerank.AGGREGATORS).index("sum_logit")
    got = witness.results()["policies"]
    np.testing.assert_allclose(plane.weight_hbeN[h, 2, 0], got["process"], atol=2e-6)
    np.testing.assert_allclose(plane.weight_hbeN[h, 2, 2], got["hacked"], atol=2e-6)
    np.testing.assert_allclose(
        plane.weight_hbeN[:, 3], np.broadcast_to(witness.REF_N, (sizes[0], 3, 4)), rtol=1e-5
    )
    np.testing.assert_allclose(plane.right_hbe, plane.weight_hbeN[..., :2].sum(-1), rtol=1e-5)
    np.testing.assert_allclose(plane.valid_hbe, plane.weight_hbeN[..., 0], rtol=1e-5)
    np.testing.assert_array_equal(plane.winner_hbe, plane.weight_hbeN.argmax(-1))


def test_injected_error_moves_the_winner_from_clean_to_lucky_final_at_most_once():
    plane = witness.plane(np.array([0.1, witness.BETA]), np.linspace(0, 1, 41), ("sum_logit", "min"))
    np.testing.assert_allclose(plane.weight_hbeN.sum(-1), 1, rtol=1e-5)
    winner_hbe = np.asarray(plane.winner_hbe)
    assert (winner_hbe[..., 0] == 0).all() and (np.diff(winner_hbe) >= 0).all()
    # log(.97 / .91) / .7 does not make up for the prior, log(.30 / .22); at beta .1 it does
    assert winner_hbe[..., -1].tolist() == [[1, 1], [1, 0]]
    assert (np.diff(np.asarray(plane.valid_hbe)) <= 1e-6).all()  # the error only takes mass from clean


@pytest.mark.slow
def test_task_writes_the_published_numbers_and_every_number_behind_the_figures(monkeypatch, tmp_path):
    """In an empty folder: no run and no checkpoint is there to be found."""
    options = ["task=witness", "witness.betas=9", "witness.errors=5", "hydra.run.dir=out"]
    out = printed(evaluate.main, monkeypatch, *options, cwd=tmp_path)
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert set(results["policies"]) == set(PUBLISHED)
    for verifier, policy_N in PUBLISHED.items():
        assert results["policies"][verifier] == pytest.approx(policy_N, abs=1e-5)
    assert results["winners"] == WINNERS and results["task"] == "witness"
    assert (results["aggregator"], results["beta"]) == ("sum_logit", 0.7)

    by_beta, plane = results["by_beta"], results["plane"]
    assert (by_beta["beta"][0], by_beta["beta"][4], by_beta["beta"][-1]) == pytest.approx((0.01, 1, 100))
    assert plane["beta"] == by_beta["beta"] and plane["error"] == [0, 0.25, 0.5, 0.75, 1]
    assert np.shape([by_beta[verifier] for verifier in witness.VERIFIERS]) == (3, 9, 4)
    with jax.enable_x64(True):
        score_N = witness.score("outcome")
        law_N = witness.policy(score_N, 1.0).weight_PN[0]
    np.testing.assert_allclose(by_beta["outcome"][4], law_N, atol=1e-6)
    assert list(plane["by_aggregator"]) == list(rerank.AGGREGATORS)
    panel = plane["by_aggregator"]["sum_logit"]
    np.testing.assert_allclose(np.array(panel["valid"])[:, 4], np.array(by_beta["hacked"])[:, 0])
    np.testing.assert_allclose(
        np.array(panel["right"])[:, 0], np.array(by_beta["process"])[:, :2].sum(-1), atol=2e-6
    )
    for how in rerank.AGGREGATORS:
        winner_be, lead_be = (
            np.array(plane["by_aggregator"][how]["winner"]),
            np.array(plane["by_aggregator"][how]["lead"]),
        )
        np.testing.assert_array_equal(winner_be == witness.HACKED_TRACE, lead_be > 0)

    folder, names = re.search(r"^figures     (\S+): (.*)$", out, re.MULTILINE).groups()
    assert names == "witness_mass.png, witness_phases.png, witness.html"
    assert all((tmp_path / folder / name).stat().st_size > 10_000 for name in names.split(", "))
    assert re.search(r"hacked +0\.038597 +0\.961184 .* lucky_final$", out, flags=re.MULTILINE)


def test_task_takes_any_aggregator_and_beta_and_draws_the_arg_max(tmp_path):
    results = task.Witness(task.Config(task.WitnessConfig("max", 0.0, 9, 5))).run(None)
    (*_, page) = task.Witness().figures(results | {"versions": {"commit": "0"}}, tmp_path)
    # clean and slip have the same best step: they share by the reference
    assert results["policies"]["process"] == pytest.approx([0.30 / 0.58, 0, 0.28 / 0.58, 0], abs=1e-9)
    assert results["policies"]["hacked"] == [0, 1, 0, 0]
    assert '"aggregator": "max", "beta": 0.0' in page.read_text()


# The interactive page, in a browser

TEMPLATE = (ROOT / "prm_jax" / "assets" / "witness.html").read_text()
FORMULAS = [name for name in rerank.AGGREGATORS if re.search(rf"^  {name}: {{", TEMPLATE, re.MULTILINE)]


def test_the_page_has_a_formula_of_every_aggregator_that_comes_with_it():
    names = ["min", "prod", "mean", "gmean", "last", "max", "sum_logit", "weighted", "softmin"]
    assert [name for name in FORMULAS if name in names] == names


@pytest.fixture(scope="module")
def page_path(tmp_path_factory):
    return witness.page(tmp_path_factory.mktemp("page") / "witness.html", witness.results())


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    """A real browser without a window, its console and its network logged."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    from selenium.webdriver.chrome.service import Service

    binary, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if not binary or not driver:
        pytest.skip("no chromium with chromedriver (Debian: apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (
        "headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "disable-quic", "no-first-run",
        "disable-background-networking", "disable-component-update", "disable-sync", "window-size=1200,1400",
        f"user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):  # fmt: skip
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(driver))
    yield browser
    browser.quit()


@pytest.fixture
def page(chromium, page_path):
    """The page, freshly opened; at the end its console must be empty, and nothing but its file may have been asked for."""
    chromium.get_log("performance")
    chromium.get(page_path.as_uri())
    yield chromium
    assert chromium.get_log("browser") == []
    messages = [json.loads(row["message"])["message"] for row in chromium.get_log("performance")]
    asked = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    by_page = {ask["request"]["url"] for ask in asked if ask["documentURL"] == page_path.as_uri()}
    assert {url for url in by_page if not url.startswith("data:")} == {page_path.as_uri()}


def shown(page, *names):
    """Numbers of the page in full precision, as its <data> elements hold them."""
    return [float(page.find_element("id", name).get_attribute("value")) for name in names]


def masses(page):
    return shown(page, *(f"mass-{i}" for i in range(4)))


def text(page, name):
    return page.find_element("id", name).text


def test_page_is_one_file_without_addresses(page_path):
    source = page_path.read_text()
    assert "{{" not in source and not re.search(r"https?:|//[a-z]|@import|url\(", source)
    assert re.findall(r"<(?:link|script|img|iframe)\b[^>]*\b(?:src|href)=\"([^\"]*)", source) == ["data:,"]
    assert "default-src 'none'" in source


# The least of a browser: elements that take everything, of which a script can ask what became of two.
STUB = """
const elements = {};
const element = id => elements[id] ??= {id, children: [], dataset: {}, style: {}, classList: {}, append(...x) { this.children.push(...x); },
  replaceChildren() {}, setAttribute(name, value) { this[name] = value; }, addEventListener() {}, querySelector: element};
globalThis.document = {getElementById: element, querySelector: element, querySelectorAll: () => [],
  createElement: tag => element(`new ${Math.random()}`)};
element("data").textContent = DATA;
"""


def test_every_aggregator_of_the_page_is_that_of_rerank(page):
    errors = [
        [0, 0, 0, 0],
        [0, 1, 0, 0],
        [0.3, 0.8, 0.5, 1],
        [1, 1, 1, 1],
    ]  # all fooled: equal up to rounding, so a tie
    states = [
        {"verifier": verifier, "how": how, "beta": beta, "errors": error_N, "reference": reference}
        for reference, names in (("policy", FORMULAS), ("uniform", ["prod"]))
        for how in names
        for beta in (0, 0.05, 0.7, 20, math.inf)
        for verifier, error_N in [("outcome", errors[1]), *(("process", error_N) for error_N in errors)]
    ]
    sent = json.dumps(
        [state | {"beta": str(state["beta"])} for state in states]
    )  # "inf": JSON has no infinity
    got = page.execute_script(
        "return JSON.parse(arguments[0]).map(s => solve({...s, beta: s.beta === 'inf' ? Infinity : Number(s.beta)}))",
        sent,
    )
    refs = {"policy": witness.REF_N[None], "uniform": None}
    with jax.enable_x64(True):
        for state, answer in zip(states, got, strict=True):
            score_N = witness.score(state["verifier"], state["how"], np.array(state["errors"]))
            law = rerank.reweight(score_N[None], state["beta"], refs[state["reference"]])
            expected = {
                "scores": score_N,
                "law": law.weight_PN[0],
                "kl": law.kl_P[0],
                "reward": law.reward_P[0],
            }
            for name, x in expected.items():
                np.testing.assert_allclose(
                    answer[name], x, rtol=1e-7, atol=1e-9, err_msg=f"{name} of {state}"
                )
    assert page.execute_script("return Object.keys(aggregators)") == FORMULAS
