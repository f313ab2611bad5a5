"""A few dozen images. `python -m tests.power` takes as many as it is told."""

from random import Random

import pytest

from .disk import Disk, Piece
from .run import Run

SEED = 1
IMAGES = 24


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")


def test_what_was_acknowledged_survives_loss_of_power() -> None:
    run = Run(SEED, images=IMAGES)
    run.play()
    assert not run.wrong, "\n".join(run.wrong)
    assert run.counts["images"] > IMAGES // 2  # the more is done at once, the fewer moments there are
    assert run.counts["effects"] > 0


def test_an_engine_that_does_not_wait_for_the_disk_is_found_out() -> None:
    """With NORMAL, SQLite keeps the file whole, and forgets what was acknowledged last."""
    run = Run(SEED, images=IMAGES, waits="NORMAL")
    run.play()
    assert any(
        "was acknowledged" in line or "was reported as" in line or "no such attempt" in line for line in run.wrong
    )


def _disk() -> Disk:
    disk = Disk(lambda disk, what: None)
    disk.made("x", syncs_folder=True)
    disk.changed("x", Piece(0, b"a" * 1_000))
    disk.synced("x")
    disk.changed("x", Piece(100, b"b" * 2_000))
    return disk


def test_what_was_synced_is_there() -> None:
    assert _disk().after_a_cut("nothing", Random(0)) == {"x": b"a" * 1_000}
    assert _disk().after_a_cut("everything", Random(0)) == {"x": b"a" * 100 + b"b" * 2_000}


def test_what_was_not_arrives_in_sectors() -> None:
    images = [_disk().after_a_cut("any sectors", Random(seed))["x"] for seed in range(20)]
    assert len(set(images)) > 10
    assert all(image[:100] == b"a" * 100 for image in images)
    assert all(len({*image[start : start + 512]}) == 1 for image in images for start in range(1024, len(image), 512))


def test_a_name_is_kept_with_its_folder() -> None:
    disk = _disk()
    disk.made("log", syncs_folder=True)
    disk.changed("log", Piece(0, b"c"))
    assert "log" not in disk.after_a_cut("nothing", Random(0))
    disk.synced("log")
    disk.deleted("log", synced=False)
    assert disk.after_a_cut("nothing", Random(0))["log"] == b"c"
    assert "log" not in disk.after_a_cut("everything", Random(0))
