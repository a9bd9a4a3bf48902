"""Calls, argument checks, sessions and limits of the machine under the apps."""

import pytest

from jaxagent.envs.sandbox import ApiError
from jaxagent.envs.world.engine import MAX_ROWS, MAX_TEXT, coerce, page
from jaxagent.envs.world.tasks import build, tasks


@pytest.fixture
def world():
    return build(tasks("full", "train")[0])[0]


def login(world, app: str) -> str:
    arguments = {"username": world.opening["email"], "password": world.passwords[app]}
    return world.call(app, "login", arguments)["access_token"]


def refused(world, app: str, api: str, **arguments) -> ApiError:
    with pytest.raises(ApiError) as caught:
        world.call(app, api, arguments)
    return caught.value


def test_unauthorised_calls_are_refused_in_appworlds_words(world):
    words = (
        "You are either not authorized to access this notes API endpoint or your access token is missing, "
        "invalid or expired."
    )
    other = login(world, "mail")
    for token in ({}, {"access_token": "made-up"}, {"access_token": other}):
        error = refused(world, "notes", "search_notes", **token)
        assert (error.status_code, error.message) == (401, words)


def test_login_needs_the_right_password_and_logout_ends_it(world):
    error = refused(world, "notes", "login", username=world.opening["email"], password="guess")
    assert (error.status_code, error.message) == (401, "Invalid credentials")
    token = login(world, "notes")
    assert world.call("notes", "search_notes", {"access_token": token})
    world.call("notes", "logout", {"access_token": token})
    assert refused(world, "notes", "search_notes", access_token=token).status_code == 401


def test_wrong_arguments_are_listed(world):
    error = refused(world, "notes", "show_note", note="x", access_token=login(world, "notes"))
    assert error.status_code == 422
    assert error.message == (
        "Validation error. Reason: \nnote: extra fields not permitted\nnote_id: field required"
    )
    error = refused(world, "notes", "show_note", note_id="seven", access_token=login(world, "notes"))
    assert error.message == "Validation error. Reason: \nnote_id: value is not a valid integer"


def test_unknown_things_are_404(world):
    assert refused(world, "chess", "play").message.startswith("No app named 'chess' found.")
    assert "search_notes" in refused(world, "notes", "play").message
    error = refused(world, "notes", "show_note", note_id=1, access_token=login(world, "notes"))
    assert (error.status_code, error.message) == (404, "The note with note_id 1 does not exist.")


@pytest.mark.parametrize(
    ("value", "kind", "want"),
    [
        ("5", int, 5),
        (5.0, int, 5),
        ("2.5", float, 2.5),
        (7, str, "7"),
        (True, bool, True),
        ((1, "a"), list, [1, "a"]),
    ],
)
def test_coercion(value, kind, want):
    assert coerce(value, kind) == want


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, int),
        (1, bool),
        ("x", int),
        (2.5, int),
        (float("nan"), float),
        (float("inf"), float),
        ("1e999", float),
        ({"a": 1}, str),
        ([1], str),
        ("ab", list),
        ("x" * (MAX_TEXT + 1), str),
        (list(range(1001)), list),
        ({"a": 1}, object),
        pytest.param(10**5000, int, id="huge"),
    ],
)
def test_what_is_no_value_of_a_type(value, kind):
    with pytest.raises((ValueError, OverflowError)):
        coerce(value, kind)


def test_pages_are_bounded():
    rows = [{"id": i} for i in range(45)]
    assert [row["id"] for row in page(rows, 2, 20)] == list(range(40, 45))
    assert len(page(rows, 0, 10**9)) == 20
    assert len(page(rows, -3, -1)) == 1
    assert page(rows, 9, 20) == []


def test_a_table_cannot_be_flooded(world):
    note = {"title": "a", "content": "b", "access_token": login(world, "notes")}
    for _ in range(MAX_ROWS - len(world.tables["notes.notes"])):
        world.call("notes", "create_note", note)
    assert refused(world, "notes", "create_note", **note).message == "Too many records."


def test_results_do_not_alias_the_state(world):
    token = login(world, "music")
    shown = world.call("music", "show_playlists", {"access_token": token})
    before = dict(world.tables["music.playlists"])
    shown[0]["song_ids"].append(1)
    shown[0]["title"] = "changed"
    assert world.tables["music.playlists"] == before


def test_completing_twice_is_refused_and_the_first_answer_stays(world):
    world.call("supervisor", "complete_task", {"answer": 3})
    assert refused(world, "supervisor", "complete_task", answer=4).status_code == 409
    assert world.answer == 3


@pytest.mark.parametrize("answer", [{"a": [1]}, float("nan"), "x" * 10_000])
def test_impossible_answers_are_refused(world, answer):
    assert refused(world, "supervisor", "complete_task", answer=answer).status_code == 422
    assert not world.completed
