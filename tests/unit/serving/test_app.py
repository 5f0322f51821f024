"""Every route and every refusal, asked in this process; the predictor is a real one."""

import json
import re

import pytest
from fastapi.testclient import TestClient

import smidgen
from smidgen.serving.app import Served, make_app
from smidgen.serving.form import make_form
from smidgen.serving.settings import ServingSettings
from tests.support.ready import ready_table

ROWS = [
    {"x": 2.5, "town": "Ulm"},
    {"x": None, "town": "Bonn"},
    {"x": "-1.5", "town": "Jena"},
]
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def predictor(tmp_path_factory):
    return smidgen.load(ready_table(tmp_path_factory.mktemp("table")))


def local_client(app):
    return TestClient(app, base_url="http://localhost")


def make_served(predictor, **changed):
    values = {
        "compute": lambda rows: predictor(rows).to_dicts(),
        "form": make_form(predictor.note),
        "folder": "table </script>",
        "digest": "0123456789abcdef",
        "version": smidgen.__version__,
        "rules": [str(rule) for rule in predictor.rules.by_name().values()],
    }
    return Served(**values | changed)


@pytest.fixture(scope="module")
def client(predictor):
    settings = ServingSettings(max_bytes=2000, max_rows=20, max_waiting=20)
    with local_client(make_app(make_served(predictor), settings)) as client:
        yield client


def test_rows_are_answered_in_their_order_as_the_predictor_alone_does(client, predictor):
    found = client.post("/predict", json={"rows": ROWS})
    assert found.status_code == 200
    content = found.json()
    assert content.keys() == {"answers", "folder", "digest", "smidgen"}
    assert content["digest"] == "0123456789abcdef"
    assert content["smidgen"] == smidgen.__version__
    for row, answer in zip(ROWS, content["answers"], strict=True):
        alone = predictor([row])[0].to_dict()
        chances = alone.pop("probabilities")
        assert answer.pop("probabilities") == pytest.approx(chances, abs=1e-6)
        assert answer.pop("confidence") == pytest.approx(alone.pop("confidence"), abs=2e-6)
        assert answer == alone
    one = client.post("/predict", json={"row": ROWS[0]})
    assert [a["answer"] for a in one.json()["answers"]] == ["yes"]


def test_health_tells_what_answers(client):
    found = client.get("/health")
    assert found.status_code == 200
    about = {"folder": "table </script>", "digest": "0123456789abcdef"}
    assert found.json() == {"ready": True, **about, "smidgen": smidgen.__version__}
    assert client.head("/health").status_code == 200


def test_it_is_not_ready_before_it_starts(predictor):
    client = local_client(make_app(make_served(predictor)))
    assert client.get("/health").status_code == 503
    found = client.post("/predict", json={"rows": ROWS})
    assert found.status_code == 503
    assert found.headers["retry-after"] == "1"


def test_metrics_count(predictor):
    with local_client(make_app(make_served(predictor))) as client:
        answers = client.post("/predict", json={"rows": ROWS}).json()["answers"]
        client.post("/predict", json={"rows": []})
        client.get("/nowhere")
        found = client.get("/metrics")
    assert found.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    for line in (
        'smidgen_requests_total{route="/predict",status="200"} 1',
        'smidgen_requests_total{route="/predict",status="422"} 1',
        'smidgen_requests_total{route="other",status="404"} 1',
        "smidgen_rows_total 3",
        f"smidgen_strange_total {sum(a['strange'] for a in answers)}",
        "smidgen_request_seconds_count 1",
        'smidgen_batch_rows_bucket{le="4"} 1',
        "smidgen_waiting_rows 0",
    ):
        assert line in found.text.splitlines()


def test_the_page_is_whole_and_may_run_nothing_but_its_own_script(client):
    found = client.get("/")
    assert found.headers["content-type"] == "text/html; charset=utf-8"
    policy = found.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert len(re.findall("'sha256-[^']+'", policy)) == 2
    # Neither a script of others nor an address elsewhere; a name ends no element.
    assert not re.search(r"(src|href)=\"(?!data:)", found.text)
    assert "https://" not in found.text
    told = re.search(r'<script id="told"[^>]*>(.*?)</script>', found.text, re.DOTALL)[1]
    assert json.loads(told)["about"]["folder"] == "table </script>"
    assert "{{" not in found.text


def test_the_description_of_the_routes_knows_the_columns(client):
    found = client.get("/openapi.json").json()
    assert found["paths"].keys() == {"/predict", "/health", "/metrics"}
    body = found["paths"]["/predict"]["post"]["requestBody"]["content"]
    several = body["application/json"]["schema"]["anyOf"][0]["properties"]["rows"]
    assert several["items"]["properties"].keys() == {"x", "town"}
    assert several["maxItems"] == 20
    answer = found["paths"]["/predict"]["post"]["responses"]["200"]["content"]
    said = answer["application/json"]["schema"]["properties"]["answers"]["items"]
    assert said["properties"]["answer"]["enum"] == ["no", "yes"]
    for path in ("/docs", "/redoc"):
        assert client.get(path).status_code == 404


@pytest.mark.parametrize(
    ("status", "content", "headers", "message"),
    [
        (400, b"rows", JSON, "the body must be JSON"),
        (400, b"\xff", JSON, "the body must be UTF-8"),
        (400, b"[" * 1500, JSON, "nested a few levels"),
        (413, b'{"row":"' + b"a" * 3000 + b'"}', JSON, "at most 2,000 bytes"),
        (415, b"{}", {}, "Content-Type must be application/json, got none"),
        (415, b"{}", {"Content-Type": "text/plain"}, "application/json, got text/plain"),
        (422, b"{}", JSON, "must have the field 'rows'"),
        (422, b'{"row": {"x": 1}}', JSON, "row 1 must have the column 'town'"),
        (422, b'{"row": {"x": NaN, "town": ""}}', JSON, "must be finite, got NaN"),
        (422, b'{"row": {"x": 1, "town": "", "\\ud800": 1}}', JSON, "no columns but"),
        (422, json.dumps({"rows": ROWS * 7}).encode(), JSON, "at most 20 rows, got 21"),
    ],
)
def test_bodies_are_refused_with_one_sentence(client, status, content, headers, message):
    found = client.post("/predict", content=content, headers=headers)
    assert found.status_code == status
    assert found.headers["content-type"] == "application/json"
    error = found.json()["error"]
    assert message in error
    assert error.endswith(".")
    assert "Traceback" not in error


def test_a_body_that_does_not_tell_its_length_is_refused_at_its_limit(client):
    found = client.post("/predict", content=(b"a" * 100 for _ in range(50)), headers=JSON)
    assert found.status_code == 413
    endless = client.post(
        "/predict", content=b"", headers={**JSON, "Content-Length": str(10**12)}
    )
    assert endless.status_code == 413


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/predict", 405),
        ("PUT", "/predict", 405),
        ("POST", "/health", 405),
        ("DELETE", "/", 405),
        ("BREW", "/metrics", 405),
        ("GET", "/predict/", 404),
        ("GET", "/../etc/passwd", 404),
        ("GET", "/%00", 404),
        ("POST", "/nowhere", 404),
    ],
)
def test_other_routes_and_methods_are_refused(client, method, path, status):
    found = client.request(method, path)
    assert found.status_code == status
    assert found.json()["error"].endswith(".")
    assert ("allow" in found.headers) == (status == 405)


@pytest.mark.parametrize("path", ["/", "/health", "/metrics", "/nowhere", "/predict"])
def test_every_response_has_the_headers_of_safety(client, path):
    headers = client.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "access-control-allow-origin" not in headers


def test_no_other_origin_may_ask_unless_it_was_named(client, predictor):
    asking = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    assert (
        "access-control-allow-origin"
        not in client.options("/predict", headers=asking).headers
    )
    settings = ServingSettings(allow_origin=("https://a.example",))
    with local_client(make_app(make_served(predictor), settings)) as open_client:
        asked = {**asking, "Access-Control-Request-Headers": "content-type"}
        first = open_client.options("/predict", headers=asked)
        assert first.status_code == 200
        assert first.headers["x-content-type-options"] == "nosniff"
        counted = 'smidgen_requests_total{route="/predict",status="200"} 1'
        assert counted in open_client.get("/metrics").text
        assert first.headers["access-control-allow-origin"] == "https://a.example"
        found = open_client.post("/predict", json={"row": ROWS[0]}, headers=asking)
        assert found.headers["access-control-allow-origin"] == "https://a.example"
        other = {**asking, "Origin": "https://b.example"}
        found = open_client.post("/predict", json={"row": ROWS[0]}, headers=other)
        assert "access-control-allow-origin" not in found.headers


def test_a_row_that_only_the_model_refuses_is_no_failure_of_the_server(predictor):
    def compute(rows):
        raise smidgen.errors.DataError("the outputs must be finite, got NaN. Look again.")

    with local_client(make_app(make_served(predictor, compute=compute))) as client:
        found = client.post("/predict", json={"row": ROWS[0]})
    assert (found.status_code, found.json()["error"]) == (
        422,
        "row 1 cannot be answered: the outputs must be finite, got NaN. Look again.",
    )


def test_a_page_that_may_ask_hears_of_a_failure_too(predictor):
    def compute(rows):
        raise RuntimeError("something broke")

    settings = ServingSettings(allow_origin=("https://a.example",))
    served = make_served(predictor, compute=compute)
    with local_client(make_app(served, settings)) as client:
        asking = {"Origin": "https://a.example"}
        found = client.post("/predict", json={"row": ROWS[0]}, headers=asking)
    assert found.status_code == 500
    assert found.headers["access-control-allow-origin"] == "https://a.example"


def test_a_name_that_is_not_the_servers_is_refused(client, predictor):
    for name in ("127.0.0.1", "localhost:8000", "[::1]:8000", "LOCALHOST"):
        assert client.get("/health", headers={"Host": name}).status_code == 200
    found = client.post(
        "/predict", json={"rows": ROWS}, headers={"Host": "evil.example:80"}
    )
    assert found.status_code == 421
    assert found.json()["error"] == (
        "Host must be one of 127.0.0.1, localhost, [::1], got 'evil.example:80'. Ask one of "
        "them, or start the server with --allow-host and the name."
    )
    assert found.headers["x-content-type-options"] == "nosniff"
    assert 'route="/predict",status="421"} 1' in client.get("/metrics").text
    for allowed, status in ((("box.local",), 200), (None, 200), ((), 421)):
        app = make_app(make_served(predictor), ServingSettings(allow_host=allowed))
        with local_client(app) as other:
            asked = other.get("/health", headers={"Host": "box.local:8000"})
        assert asked.status_code == status


def test_a_refusal_names_the_row_of_the_request(predictor):
    def compute(rows):
        wrong = [number for number, row in enumerate(rows) if row["x"] == 7]
        if wrong:
            raise smidgen.errors.DataError(
                f"got inf at row {wrong[0]} (rows are counted from 0)."
            )
        return predictor(rows).to_dicts()

    settings = ServingSettings(max_batch=8)
    served = make_served(predictor, compute=compute)
    rows = [{"x": number, "town": "Ulm"} for number in (0.5,) * 20]
    rows[12]["x"] = 7
    with local_client(make_app(served, settings)) as client:
        found = client.post("/predict", json={"rows": rows})
    assert (found.status_code, found.json()["error"]) == (422, "got inf at row 13.")


def test_a_number_that_fp32_cannot_hold_is_named(client):
    rows = [*ROWS, {"x": 1e300, "town": "Ulm"}]
    found = client.post("/predict", json={"rows": rows})
    assert found.status_code == 422
    assert "row 4 must have a number from" in found.json()["error"]


def test_a_failure_is_told_to_the_owner_alone_and_the_server_goes_on(predictor, caplog):
    def compute(rows):
        if rows[0]["x"] == 0:
            raise FileNotFoundError(2, "No such file", "/home/owner/model.safetensors")
        return predictor(rows).to_dicts()

    with local_client(make_app(make_served(predictor, compute=compute))) as client:
        found = client.post("/predict", json={"row": {"x": 0, "town": "Ulm"}})
        assert found.status_code == 500
        said = re.fullmatch(
            r"the server failed \(failure ([0-9a-f]{8})\)\. Tell its owner this number: the "
            r"reason stands in what the server wrote\.",
            found.json()["error"],
        )
        assert f"failure {said[1]}, /predict:" in caplog.text
        assert "/home/owner/model.safetensors" in caplog.text
        assert "Traceback" in caplog.text
        assert client.post("/predict", json={"row": ROWS[0]}).status_code == 200
        assert 'route="/predict",status="500"} 1' in client.get("/metrics").text
