"""A letter is read once, whatever a slow query says."""

from tenuto.runtime.durable.unread_mail import UnreadMail


def test_a_letter_that_was_answered_while_the_query_was_under_way_is_not_read_again() -> None:
    letters = UnreadMail()
    slow, quick = letters.begin(), letters.begin()
    assert letters.is_new(quick, "m", "x")
    letters.read("m", "x")
    letters.end(quick)
    assert not letters.is_new(slow, "m", "x")
    letters.answer("m")
    assert not letters.is_new(slow, "m", "x")
    letters.end(slow)


def test_what_a_query_saw_before_the_execution_was_taken_is_out_of_date() -> None:
    letters = UnreadMail()
    before = letters.begin()
    letters.taken("x")
    assert not letters.is_new(before, "m", "x")
    assert letters.is_new(letters.begin(), "m", "x")


def test_what_could_not_be_recorded_is_read_again() -> None:
    letters = UnreadMail()
    letters.read("m1", "x")
    letters.read("m2", "x")
    letters.left("x")
    letters.read("m3", "y")
    letters.settle("m3", "fenced")
    query = letters.begin()
    assert all(letters.is_new(query, letter, "x") for letter in ("m1", "m2", "m3"))


def test_answers_are_forgotten_when_no_query_can_contradict_them() -> None:
    letters = UnreadMail()
    query = letters.begin()
    letters.read("m", "x")
    letters.answer("m")
    letters.end(query)
    assert letters.is_new(letters.begin(), "m", "x")  # the database says that it was answered
