"""The backend "troupe" of torch.distributed on real workers, against Gloo and one process."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import troupe

import c10d_cases
import c10d_programs

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


def run(function: Any, args: tuple[Any, ...] = (), workers: int = 2, told: Any = None,
        **options: Any) -> list[Any]:
    """The results; ``told`` gets what the driver hears of restarts."""

    def hear(event: dict[str, Any]) -> None:
        if told is not None and "begins again" in str(event.get("message")):
            told.append((event["kind"], event["message"]))

    options = {"cpus_per_worker": 0.4, "progress": "off", "log_to_driver": False, **options}
    with troupe.Executor(workers=workers, **options) as executor:
        return list(executor.submit(function, args, on_event=hear).result())


def test_every_collective_gives_what_gloo_gives() -> None:
    """In the whole group and in a part of it, each dtype, waited for at once and later."""
    results = run(c10d_cases.table, workers=3)
    assert [result["wrong"] for result in results] == [[], [], []]
    both, whole = results[0]["count"], results[1]["count"]
    assert both == 2 * whole == results[2]["count"] and whole > 300


def test_models_train_as_in_one_process() -> None:
    for found in run(c10d_programs.data_parallel, workers=3):
        rough = {name: found.pop(name) for name in ("fp16 hook", "PowerSGD")}
        assert {name: off for name, off in found.items() if off > 1e-5} == {}
        assert 0 < rough["fp16 hook"] < 1e-3 and 0 < rough["PowerSGD"] < 0.1


@pytest.mark.venv_only  # torch 1.13 has neither fully_shard nor device meshes.
def test_sharded_models_train_as_in_one_process() -> None:
    for found in run(c10d_programs.sharded, workers=4):
        assert set(found) == {"FSDP1", "FSDP2", "DTensor", "mesh"}
        assert {name: off for name, off in found.items() if off > 1e-5} == {}


def test_messages_between_two_ranks_in_any_order() -> None:
    first, second = run(c10d_programs.messages)
    assert first == []
    assert second == ["recv: rank 0 sent 12 bytes, and the tensor here has 8; shape and dtype must "
                      "be alike on both sides"]


def test_a_function_begins_again_from_its_checkpoint(tmp_path: Path) -> None:
    """In the processes that are left, and once more when the replacement joins."""
    told: list[tuple[str, str]] = []
    results = run(c10d_programs.interrupted, (str(tmp_path / "died"), 42, 200), workers=3,
                  min_workers=2, max_workers=3, told=told)
    wanted = c10d_programs.uninterrupted(200)
    for result in results:
        assert result["size"] == 3
        assert max(abs(a - b) for a, b in zip(result["numbers"], wanted)) < 1e-5
    kept = [result["begun"] for result in results if len(result["begun"]) == 3]
    assert len(kept) == 2
    for begun in kept:
        assert len({pid for pid, _, _ in begun}) == 1
        assert begun[0][1:] == (0, 3) and begun[1][1:] == (40, 2)
        assert begun[2][1] > 40 and begun[2][1] % 5 == 0 and begun[2][2] == 3
    later = kept[0][2][1]
    assert told == [
        ("resumed", "the function begins again on 2 workers, from checkpoint 8"),
        ("resumed", f"the function begins again on 3 workers, from checkpoint {later // 5}")]
    (joined,) = [result["begun"] for result in results if len(result["begun"]) == 1]
    assert joined[0][1:] == kept[0][2][1:]


@pytest.mark.once
@pytest.mark.timeout(300)
def test_a_script_whose_workers_are_killed_again_and_again(tmp_path: Path) -> None:
    """Also while it begins; more often than a group has numbers for subgroups."""
    chance = random.Random(5)
    with troupe.Executor(1, 4, workers=4, cpus_per_worker=0.4, num_cpus=2, progress="off",
                         log_to_driver=False) as executor:
        handle = executor.submit(c10d_programs.hunted, (str(tmp_path),))
        deadline = time.monotonic() + 150
        while handle.status()["epoch"] < 34:
            assert time.monotonic() < deadline and not handle.done()
            time.sleep(chance.choice([0.02, 0.1, 0.3, 0.6]))
            alive = [int(path.name) for path in tmp_path.iterdir()
                     if Path(f"/proc/{path.name}").exists()]
            if len(alive) > 2:  # Somebody has to hold the newest state.
                os.kill(chance.choice(alive), signal.SIGKILL)
        (tmp_path / "stop").touch()
        results = handle.result(timeout=60)
    (steps,) = {result["steps"] for result in results}
    in_one_process = c10d_programs.uninterrupted(steps)
    for result in results:
        assert max(abs(a - b) for a, b in zip(result["numbers"], in_one_process)) < 1e-5


def test_all_go_on_with_the_newest_state_whole() -> None:
    """Tensors and the plain values that belong to them."""
    results = run(c10d_programs.behind, workers=3, min_workers=2, max_workers=3)
    assert results == [{"step": 3, "weight": [3.0] * 3, "version": 3}] * 2


def test_an_attempt_leaves_nothing_to_the_next_one() -> None:
    """Neither its models, which may fill the memory, nor what it did to its arguments."""
    results = run(c10d_programs.forgetful, ({"rate": 1},), workers=3, min_workers=2,
                  max_workers=3)
    assert results == [
        {"changed": False, "alive": [None], "size": 2, "attempt": 2} for _ in range(2)]


def test_what_is_on_disk_outlives_all_workers(tmp_path: Path) -> None:
    """A replacement finds the directory too, and so does a later run of the same name."""
    args = (str(tmp_path / "kept"), 6, str(tmp_path / "died"))
    results = run(c10d_programs.durable, args, name="kept", min_workers=2, max_workers=2)
    assert {result["version"] for result in results} == {6}
    assert {result["began"] for result in results} <= {3, 4}  # Rank 0 may have saved once more.
    assert all(result["weight"] == [result["began"]] * 2 for result in results)
    later = run(c10d_programs.durable, (args[0], 8, args[2]), name="kept", min_workers=2,
                max_workers=2)
    assert later == [{"began": 6, "weight": [6.0, 6.0], "version": 8}] * 2


def test_subgroups_and_works_may_be_dropped() -> None:
    first, second = run(c10d_programs.again_after_subgroups)
    assert first == second


def test_the_backend_is_there_for_who_only_looks_for_torch() -> None:
    assert run(c10d_programs.probed, preload=[]) == ["troupe", "troupe"]


def test_a_death_before_there_is_a_group(tmp_path: Path) -> None:
    assert run(c10d_programs.dies_at_once, (str(tmp_path / "died"),), workers=3, min_workers=2,
               max_workers=3) == [2, 2]


def test_a_rank_may_go_on_alone_at_the_end() -> None:
    """Nobody who waits for it in the end takes it for one that stalls."""
    assert run(c10d_programs.late, (4.0,), stall_report_s=0.5, stall_remove_s=1.0) == [4.0, 4.0]


@pytest.mark.parametrize("how", ["recv", "future", "group"])
def test_whoever_waits_for_the_dead_hears_of_it(how: str) -> None:
    told: list[tuple[str, str]] = []
    (result,) = run(c10d_programs.waiting, (how,), min_workers=1, max_workers=2, reset_limit=1,
                    told=told)
    assert re.fullmatch(r"alone in epoch \d+", result)
    assert told == [("warning", "the function begins again on 1 worker, from its start: it has "
                     "saved nothing with troupe.checkpoint.save")]


@pytest.mark.parametrize(("kind", "wanted"), [
    ("error", "the user's own"),
    ("op", "all_reduce: ReduceOp.BAND is for integers and truth values, not float32"),
    ("size", "rank . gives [3], but its own place in the list of outputs is [2]"),
    ("mismatch", "rank 0: all_reduce sum float32[2]; rank 1: all_reduce sum float32[3]"),
    ("rank", "told rank 0 of 1, but this worker is rank"),
])
def test_what_is_wrong_is_said(kind: str, wanted: str) -> None:
    with pytest.raises(troupe.WorkerError, match=re.escape(wanted).replace("rank\\ \\.", "rank .")):
        run(c10d_programs.wrong, (kind,))


def test_a_death_under_another_backend_fails_the_run() -> None:
    """Its peers may wait in it for ever, so that the function does not begin again."""
    with pytest.raises(troupe.TroupeError):
        run(c10d_programs.wrong, ("gloo",), min_workers=1, max_workers=2, reset_limit=0)


SCRIPT = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("{backend}")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
         "GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT",
         "TORCHELASTIC_RUN_ID")
print("found", int(total), dist.get_backend(), *(os.environ[name] for name in names))
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 2,
                      dist.get_rank() == 0)
store.set(f"key{{dist.get_rank()}}", "value")
print("stored", store.get(f"key{{1 - dist.get_rank()}}"))
dist.barrier()  # Rank 0 serves the store.
dist.destroy_process_group()
"""


@pytest.mark.parametrize("backend", ["troupe", "gloo"])
def test_a_script_for_torchrun_needs_no_change(
    backend: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from troupe.cli import main

    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(backend=backend))
    assert main(["run", "-np", "2", "--cpus-per-worker", "0.4", str(script)]) == 0
    out = capfd.readouterr().out
    found = sorted(re.findall(rf"found 3 {backend} (\d) 2 (\d) 2 (\S+) (\d+) 0 (\d) 2 0 \S+", out))
    assert [f[0] for f in found] == [f[1] for f in found] == [f[4] for f in found] == ["0", "1"]
    assert found[0][2:4] == found[1][2:4]
    assert out.count("stored b'value'") == 2


def test_modules_and_commands_have_ranks_too(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from troupe.cli import main

    (tmp_path / "trainer.py").write_text(
        "import os, sys\nprint('module', os.environ['RANK'], __name__, *sys.argv[1:])\n")
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--nproc-per-node=2", "-m", "trainer", "--lr", "1"]) == 0
    out = capfd.readouterr().out
    assert sorted(re.findall("module .*", out)) == [
        "module 0 __main__ --lr 1", "module 1 __main__ --lr 1"]
    line = "echo command $RANK of $WORLD_SIZE at $MASTER_ADDR; exit $((RANK * 3))"
    assert main(["run", "--nproc-per-node=2", "bash", "-c", line]) == 3
    captured = capfd.readouterr()
    assert "command 1 of 2 at 127.0.0.1" in captured.out
    assert "exited with status 3" in captured.err
