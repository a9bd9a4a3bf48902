"""Events with dates, places and attendees."""

from __future__ import annotations

from jaxagent.envs.world.apps.account import MESSAGE, login_of, logout_of
from jaxagent.envs.world.engine import Api, App, World, page, view

EVENT = {
    "event_id": 1,
    "title": "string",
    "date": "string",
    "start_time": "string",
    "minutes": 1,
    "location": "string",
    "attendees": ["string"],
}


def search_events(
    world: World,
    access_token: str,
    query: str = "",
    date: str | None = None,
    attendee: str | None = None,
    page_index: int = 0,
    page_limit: int = 5,
):
    """Search events by title, date and attendee.

    access_token: access token from calendar login
    query: part of the title
    date: only events of this day, YYYY-MM-DD
    attendee: only events that the person with this email attends
    page_index: number of the page, from 0
    page_limit: records a page, 1 to 20
    """
    rows = [
        view(row, *EVENT)
        for row in sorted(world.rows("calendar.events"), key=lambda row: (row["date"], row["start_time"]))
        if query.casefold() in row["title"].casefold()
        and date in (None, row["date"])
        and (attendee is None or attendee in row["attendees"])
    ]
    return page(rows, page_index, page_limit)


def show_event(world: World, event_id: int, access_token: str):
    """Show one event.

    event_id: id of the event
    access_token: access token from calendar login
    """
    return view(world.get("calendar.events", event_id, "event"), *EVENT)


def create_event(
    world: World,
    title: str,
    date: str,
    start_time: str,
    access_token: str,
    minutes: int = 60,
    location: str = "",
    attendees: list | None = None,
):
    """Create an event.

    title: title of the event
    date: day, YYYY-MM-DD
    start_time: start, HH:MM
    access_token: access token from calendar login
    minutes: duration in minutes
    location: place
    attendees: emails of the attendees
    """
    key = world.add(
        "calendar.events",
        title=title,
        date=date,
        start_time=start_time,
        minutes=minutes,
        location=location,
        attendees=tuple(map(str, attendees or ())),
    )
    return {"message": "Event created.", "event_id": key}


def update_event(
    world: World,
    event_id: int,
    access_token: str,
    date: str | None = None,
    start_time: str | None = None,
    minutes: int | None = None,
    location: str | None = None,
):
    """Change the day, the start, the duration or the place of an event.

    event_id: id of the event
    access_token: access token from calendar login
    date: new day, YYYY-MM-DD
    start_time: new start, HH:MM
    minutes: new duration in minutes
    location: new place
    """
    world.get("calendar.events", event_id, "event")
    fields = {"date": date, "start_time": start_time, "minutes": minutes, "location": location}
    world.change("calendar.events", event_id, **{k: v for k, v in fields.items() if v is not None})
    return {"message": "Event updated."}


def delete_event(world: World, event_id: int, access_token: str):
    """Delete an event.

    event_id: id of the event
    access_token: access token from calendar login
    """
    world.get("calendar.events", event_id, "event")
    world.remove("calendar.events", event_id)
    return {"message": "Event deleted."}


APP = App(
    "calendar",
    "Events with dates, places and attendees.",
    (
        login_of("calendar"),
        logout_of("calendar"),
        Api(search_events, [EVENT]),
        Api(show_event, EVENT),
        Api(create_event, MESSAGE | {"event_id": 1}),
        Api(update_event, MESSAGE),
        Api(delete_event, MESSAGE),
    ),
)
