"""The limit holds for its own thread and block, and comes back when that ends."""

from threading import Thread

import pytest

from engine.ops.hopper.sm_limit import current_limit, sm_limit


def test_a_limit_ends_with_its_block():
    assert current_limit() == 0
    with sm_limit(66):
        with sm_limit(0):
            assert current_limit() == 0
        assert current_limit() == 66
    with pytest.raises(KeyError), sm_limit(10):
        raise KeyError
    assert current_limit() == 0


def test_another_thread_has_its_own():
    found = []
    with sm_limit(66):
        thread = Thread(target=lambda: found.append(current_limit()))
        thread.start()
        thread.join()
    assert found == [0]


@pytest.mark.parametrize("count", [1, -2])
def test_less_than_a_cluster_is_no_limit(count):
    with pytest.raises(ValueError, match=f"sm_limit\\({count}\\)"), sm_limit(count):
        pass
