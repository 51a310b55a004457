"""examples/serve.py: its answers are the verifier's, and what is wrong gets a reason and harms nobody."""

import concurrent.futures
import contextlib
import http.client
import json
import socket
import threading
import time

import numpy as np
import pytest

import prm_jax
from examples import serve

PROBLEM = "4 +5 *3 mod7?"
RIGHT, WRONG, SHORT = ["4+5=2", "2*3=6"], ["4+5=3", "3*3=2"], ["4+5*3=6"]


@contextlib.contextmanager
def served(verifier, token=None):
    """The port of a server in this process."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = serve.make_server(serve.make_app(verifier, token), "127.0.0.1", 0)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def ask(port, body, headers=()):
    """(status, JSON or text) of a POST to /score."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    with contextlib.closing(connection):
        body = body if isinstance(body, bytes) else json.dumps(body)
        connection.request("POST", "/score", body, dict(headers))
        answer = connection.getresponse()
        text = answer.read().decode()
        return answer.status, json.loads(text) if text.startswith("{") else text


@pytest.fixture(scope="module")
def verifier():
    return prm_jax.load("embedded_prm")


@pytest.fixture(scope="module")
def port(verifier):
    with served(verifier) as port:
        yield port


def test_scores_and_rankings_are_the_verifiers(port, verifier):
    candidates = [WRONG, RIGHT, SHORT, RIGHT]
    problems = [{"problem": PROBLEM, "candidates": candidates}, {"problem": PROBLEM, "steps": WRONG}]
    status, answer = ask(port, {"problems": problems})
    assert status == 200 and answer["label_kind"] == "correctness"
    assert answer["aggregator"] == verifier.aggregator
    ranked, alone = answer["problems"]
    expected = verifier.log_odds([PROBLEM] * 4, candidates)
    for candidate, log_odds_T in zip(ranked["candidates"], expected, strict=True):
        np.testing.assert_allclose(candidate["log_odds"], log_odds_T, atol=1e-5)
        np.testing.assert_allclose(candidate["probability"], 1 / (1 + np.exp(-log_odds_T)), atol=1e-6)
        np.testing.assert_allclose(candidate["log_score"], -np.logaddexp(0, -log_odds_T.min()), rtol=2e-5)
    assert ranked["ranking"][:2] == [1, 3] and len(alone["candidates"]) == 1
    assert ranked["ranking"] == verifier.rank(PROBLEM, candidates)


def test_requests_that_wait_are_scored_together_and_a_bad_one_harms_nobody(verifier, monkeypatch):
    bodies = [{"problem": PROBLEM, "steps": steps} for steps in (RIGHT, WRONG, SHORT)] * 8
    bodies[5] = {"problem": PROBLEM, "steps": ["+" * (serve.MOST_TOKENS + 1)]}
    asked = []
    score = serve.Batcher.log_odds
    monkeypatch.setattr(serve.Batcher, "log_odds", lambda own, jobs: asked.append(jobs) or score(own, jobs))
    with served(verifier) as port, concurrent.futures.ThreadPoolExecutor(len(bodies)) as clients:
        answers = list(clients.map(lambda body: ask(port, body), bodies))
    assert max(map(len, asked)) > 1
    assert [status for status, _ in answers] == [200 if i != 5 else 413 for i in range(len(bodies))]
    for (status, answer), body in zip(answers, bodies, strict=True):
        if status == 200:
            got = answer["problems"][0]["candidates"][0]["probability"]
            np.testing.assert_allclose(got, verifier.score(PROBLEM, body["steps"]), atol=1e-5)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{", "the body"),
        ({"problem": PROBLEM, "steps": ["4+5=2", 6]}, "problems[0].steps[1]"),
        ({"problem": PROBLEM, "steps": RIGHT, "aggregator": "prod"}, "problems[0].aggregator"),
    ],
)
def test_a_bad_request_is_told_its_field(port, body, field):
    status, answer = ask(port, body)
    assert status == 400 and answer["error"].startswith(f"{field}: ") and "\n" not in answer["error"]


def test_limits(port, monkeypatch):
    start = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:  # a body that never comes
        client.sendall(b"POST /score HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999\r\n\r\n{")
        assert b" 413 " in client.recv(1 << 16)
    assert time.perf_counter() - start < 2
    monkeypatch.setattr(serve, "MOST_SOLUTIONS", 1)
    assert ask(port, {"problem": PROBLEM, "candidates": [RIGHT, WRONG]})[0] == 413


def test_who_may_ask(port, verifier):
    body = {"problem": PROBLEM, "steps": RIGHT}
    assert ask(port, body, {"Host": "other.example"})[0] == 400
    with served(verifier, token="secret") as guarded:
        assert ask(guarded, body)[0] == 401
        assert ask(guarded, body, {"Authorization": "Bearer secret", "Host": "other.example"})[0] == 200
