"""Reports that a server shows: the files of one folder, and of no other place."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agentrt.errors import ConfigError
from agentrt.serving import BearerTokens, create_app
from agentrt.serving.studio import reports as report_routes
from tests.serving.conftest import serve
from tests.serving.studio.reports import make_agent, make_report


async def test_report_has_figures_and_runs_of_the_store(tmp_path: Path):
    agent = make_agent()
    report = await make_report(agent, ablate=True)
    report.save(tmp_path / "new.json")
    (await make_report(make_agent(greeting="Goodbye"))).save(tmp_path / "old.json")
    os.utime(tmp_path / "old.json", (0, 0))
    async with serve(agent, reports=tmp_path) as client:
        assert (await client.get("/api/chains")).json()["reports"] is True
        listed = (await client.get("/api/reports")).json()["reports"]
        assert [found["name"] for found in listed] == ["new.json", "old.json"]
        assert listed[1]["written_at"] == "1970-01-01T00:00:00.000000000Z"
        page = (await client.get("/api/reports/new.json?with=old.json")).json()
        assert (page["title"], page["quality"], page["interval"]) == ("orders", 0.5, list(report.interval))
        assert page["estimates"] == [{"k": k, "pass_at": 0.5, "pass_hat": 0.5} for k in (1, 2)]
        assert [(group["name"], group["quality"]) for group in page["evaluators"]] == [("contains('HELLO')", 0.5)]
        assert [group["name"] for group in page["labels"]] == ["kind=order"]
        assert page["cases"][0] == {
            "name": "fails",
            "passed": [False] * 2,
            "interval": [0, pytest.approx(0.658, abs=1e-3)],
        }
        [row] = page["ablation"]
        assert (row["layer"], row["change"], row["p"]) == ("Loud", 0.5, 1)
        compared = page["comparison"]
        assert (compared["with"], compared["better"], compared["worse"]) == ("old.json", ["passes"], [])
        assert (compared["same"], compared["p"]) == (["fails"], 1)
        failed = page["trials"][0]
        assert (failed["answer"], failed["passed"]) == ("I do not know.", False)
        [[session_id, reply_id]] = failed["runs"]
        run = (await client.get(f"/api/runs/{session_id}/{reply_id}")).json()
        assert run["title"] == "Where is it?"
        # The runs of the other one were recorded elsewhere.
        other = (await client.get("/api/reports/old.json")).json()
        assert other["comparison"] is None
        assert {tuple(trial["runs"]) for trial in other["trials"]} == {()}


async def test_a_name_is_a_file_of_the_folder_alone(tmp_path: Path):
    folder = tmp_path / "reports"
    folder.mkdir()
    (await make_report(make_agent())).save(tmp_path / "secret.json")
    (folder / "link.json").symlink_to(tmp_path / "secret.json")
    (folder / "folder.json").mkdir()
    os.mkfifo(folder / "pipe.json")
    for name in (".hidden.json", "text.txt", "two\u202elines.json", "a:b.json"):
        (folder / name).write_bytes((tmp_path / "secret.json").read_bytes())
    async with serve(make_agent(), reports=folder) as client:
        assert (await client.get("/api/reports")).json() == {"reports": []}
        names = [
            "link.json",
            "folder.json",
            "pipe.json",
            ".hidden.json",
            "text.txt",
            "two%E2%80%AElines.json",
            "a:b.json",
        ]
        outside = [
            "..%2Fsecret.json",
            "%2E%2E%2Fsecret.json",
            "..%5Csecret.json",
            "",
            "%00.json",
            "x" * 5_000 + ".json",
        ]
        for name in [*names, *outside, str(tmp_path / "secret.json").replace("/", "%2F"), "none.json"]:
            response = await client.get(f"/api/reports/{name}", follow_redirects=False)
            assert response.status_code in (307, 404), name
            assert b"orders" not in response.content
        (await make_report(make_agent())).save(folder / "good.json")
        assert (await client.get("/api/reports/good.json?with=link.json")).status_code == 404
        assert [found["name"] for found in (await client.get("/api/reports")).json()["reports"]] == ["good.json"]


async def test_reports_go_without_owners_only(tmp_path: Path):
    auth = BearerTokens({"ann-token": "ann"})
    with pytest.raises(ConfigError, match="cannot be combined with auth"):
        create_app(make_agent(), auth=auth, reports=tmp_path)
    for folder in (tmp_path / "none", Path(__file__), 7, True):
        with pytest.raises(ConfigError, match="existing folder"):
            create_app(make_agent(), reports=folder)  # type: ignore[arg-type]
    async with serve(make_agent(), auth=auth) as client:
        headers = {"Authorization": "Bearer ann-token"}
        assert (await client.get("/api/chains", headers=headers)).json()["reports"] is False
        assert (await client.get("/api/reports", headers=headers)).status_code == 404


def damaged(valid: str) -> dict[str, str]:
    """Return texts that are no report, or have values that no report has."""
    value = json.loads(valid)
    trial = value["trials"][0]
    changes: dict[str, dict[str, Any]] = {
        "repeats": {"repeats": "two"},
        "many": {"repeats": 10**9, "cases": [{"name": "fails", "labels": {}}], "trials": [trial]},
        "seed": {"seed": []},
        "nan": {"trials": [{**trial, "seconds": float("nan")}]},
        "huge": {"trials": [{**trial, "cost": 10**400}]},
        "verdict": {"trials": [{**trial, "verdicts": {"a": {"score": "x", "passed": 1, "reason": None}}}]},
        "runs": {"trials": [{**trial, "runs": [[1, 2, 3]]}]},
        "newer": {"format": 2},
        "ablation": {"ablation": [{"layer": "L", "interval": 3}]},
    }
    texts = {name: json.dumps({**value, **change}) for name, change in changes.items()}
    texts["half"] = valid.replace("I do not know", "\\ud800")
    return {**texts, "empty": "", "list": "[]", "deep": "[" * 100_000, "bytes": "\udc80"}


async def test_a_damaged_file_is_refused_and_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    report = await make_report(make_agent())
    texts = damaged(report.to_json())
    for name, text in texts.items():
        (tmp_path / f"{name}.json").write_text(text, encoding="utf-8", errors="surrogateescape")
    report.save(tmp_path / "good.json")
    async with serve(make_agent(), reports=tmp_path) as client:
        for name in texts:
            response = await client.get(f"/api/reports/{name}.json")
            assert (response.status_code, response.json()["error"]["code"]) == (500, "unreadable"), name
        monkeypatch.setattr(report_routes, "_MAX_REPORT_BYTES", 1_000)
        response = await client.get("/api/reports/good.json")
        assert (response.status_code, response.json()["error"]["code"]) == (413, "too_large")


async def test_lists_and_look_ups_are_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    agent = make_agent()
    (await make_report(agent)).save(tmp_path / "a.json")
    for name in ("b", "c"):
        (tmp_path / f"{name}.json").write_text("{}")
    monkeypatch.setattr(report_routes, "_MAX_REPORTS", 2)
    monkeypatch.setattr(report_routes, "_MAX_LINKED_RUNS", 3)
    async with serve(agent, reports=tmp_path) as client:
        assert len((await client.get("/api/reports")).json()["reports"]) == 2
        page = (await client.get("/api/reports/a.json")).json()
        # Those of failed trials come first.
        linked = [(trial["passed"], len(trial["runs"])) for trial in page["trials"]]
        assert sorted(linked) == [(False, 1), (False, 1), (True, 0), (True, 1)]
