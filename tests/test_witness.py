"""The witness's published numbers, its plane against single calls, and its page in a browser."""

import json
import re
import shutil

import jax
import numpy as np
import pytest
from conftest import ROOT

from prm_jax import rerank, witness

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
    assert [got["reward"][v] for v in witness.VERIFIERS] == pytest.approx([2.205, 4.880, 7.271], abs=1e-3)
    assert [got["kl"][v] for v in witness.VERIFIERS] == pytest.approx([0.729, 1.169, 1.337], abs=1e-3)
    # With the product the fooled verifier's favourite does not make up for its lower prior.
    law = witness.results("prod")
    np.testing.assert_allclose(law["policies"]["hacked"], [0.4981, 0.4313, 0.0612, 0.0094], atol=1e-4)
    assert law["winners"]["hacked"] == "clean"


def test_scores_of_the_seed():
    np.testing.assert_allclose(witness.score("outcome"), [1.815, 2.442, -1.658, -1.992], atol=1e-3)
    np.testing.assert_allclose(witness.score("process"), [4.900, -2.811, 1.321, -2.005], atol=1e-3)
    np.testing.assert_allclose(witness.score("hacked"), [4.900, 7.368, 1.321, -2.005], atol=1e-3)
    np.testing.assert_allclose(witness.score("process", "prod"), [-0.167, -3.260, -1.587, -2.659], atol=1e-3)


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
    np.testing.assert_allclose(plane.valid_hbe, plane.weight_hbeN[..., 0], rtol=1e-5)
    np.testing.assert_array_equal(plane.winner_hbe, plane.weight_hbeN.argmax(-1))


# The interactive page, in a browser

TEMPLATE = (ROOT / "prm_jax" / "assets" / "witness.html").read_text()
FORMULAS = [name for name in rerank.AGGREGATORS if re.search(rf"^  {name}: {{", TEMPLATE, re.MULTILINE)]


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
    flags = "headless=new no-sandbox disable-gpu disable-dev-shm-usage disable-background-networking"
    for flag in [*flags.split(), f"user-data-dir={tmp_path_factory.mktemp('chromium')}"]:
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(driver))
    yield browser
    browser.quit()


@pytest.fixture
def page(chromium, page_path):
    """The page, freshly opened; at the end its console is empty, and it has asked for its file alone."""
    chromium.get_log("performance")
    chromium.get(page_path.as_uri())
    yield chromium
    assert chromium.get_log("browser") == []
    messages = [json.loads(row["message"])["message"] for row in chromium.get_log("performance")]
    asked = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    by_page = {ask["request"]["url"] for ask in asked if ask["documentURL"] == page_path.as_uri()}
    assert {url for url in by_page if not url.startswith("data:")} == {page_path.as_uri()}


def test_page_is_one_file_without_addresses(page_path):
    source = page_path.read_text()
    assert "{{" not in source and not re.search(r"https?:|//[a-z]|@import|url\(", source)
    assert re.findall(r"<(?:link|script|img|iframe)\b[^>]*\b(?:src|href)=\"([^\"]*)", source) == ["data:,"]
    assert "default-src 'none'" in source
    assert FORMULAS == list(rerank.AGGREGATORS)


def test_every_aggregator_of_the_page_is_that_of_rerank(page):
    assert page.execute_script("return Object.keys(aggregators)") == FORMULAS
    errors = [0, 0, 0, 0], [0, 1, 0, 0], [0.3, 0.8, 0.5, 1], [1, 1, 1, 1]  # of the last all scores tie
    states = [
        {"verifier": "process", "how": how, "beta": beta, "errors": error_N, "reference": "policy"}
        for how in FORMULAS
        for beta in (0, 0.05, 0.7, 20, 1e9)
        for error_N in errors
    ]
    got = page.execute_script("return JSON.parse(arguments[0]).map(solve)", json.dumps(states))
    with jax.enable_x64(True):
        for state, answer in zip(states, got, strict=True):
            score_N = witness.score("process", state["how"], np.array(state["errors"]))
            law = witness.policy(score_N, state["beta"])
            expected = {"law": law.weight_PN[0], "kl": law.kl_P[0], "reward": law.reward_P[0]}
            for name, x in expected.items():
                np.testing.assert_allclose(answer[name], x, rtol=1e-7, atol=1e-9, err_msg=f"{name}: {state}")
