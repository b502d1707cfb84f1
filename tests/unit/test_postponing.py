"""What did not go is tried again after growing pauses, and told when the reason is a new one."""

from __future__ import annotations

from agentos.workflow.start.worker import FIRST_S, LONGEST_S, Postponed


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_pauses_double_up_to_the_longest() -> None:
    clock = Clock()
    postponed = Postponed(clock)
    for pause_s in (FIRST_S, 2 * FIRST_S, 4 * FIRST_S, *(8 * FIRST_S * 2**n for n in range(3)), LONGEST_S, LONGEST_S):
        postponed.put_off("a", "busy", version=7)
        assert postponed.not_due() == [("a", 7)]
        clock.now += pause_s - 0.25
        assert not postponed.is_due("a")
        clock.now += 0.25
        assert (postponed.is_due("a"), postponed.not_due()) == (True, [])


def test_a_reason_is_news_once_and_again_when_it_changes_or_it_went_meanwhile() -> None:
    postponed = Postponed(Clock())
    assert [postponed.put_off("a", why) for why in ("one", "one", "two")] == [True, False, True]
    postponed.forget("a")
    assert postponed.put_off("a", "two")


def test_what_somebody_stood_in_the_way_of_is_due_when_one_of_ours_is_through() -> None:
    postponed = Postponed(Clock())
    postponed.put_off("busy", "held", passing=True)
    postponed.put_off("broken", "gone")
    postponed.look_again()
    assert (postponed.is_due("busy"), postponed.is_due("broken"), postponed.is_due("other")) == (True, False, True)
