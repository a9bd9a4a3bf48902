"""Tasks about songs and playlists."""

from __future__ import annotations

from jaxagent.envs.world.engine import Row
from jaxagent.envs.world.goal import Goal, added, removed, updated
from jaxagent.envs.world.kinds.scene import DONE, Kind, Scene, fill, find_contact, full_name, sent_text
from jaxagent.envs.world.people import ARTISTS, GENRES

FIND_PLAYLIST = """
playlists = pages(apis.music.show_playlists, access_token=music_token)
playlist = [row for row in playlists if row["title"] == <title>][0]
songs = [apis.music.show_song(song_id=song_id, access_token=music_token) for song_id in playlist["song_ids"]]
print(songs)
"""
LIKED = "liked = pages(apis.music.show_liked_songs, access_token=music_token)\nprint(len(liked))"


def songs_of(scene: Scene, playlist: Row) -> list[Row]:
    return [scene.tables["music.songs"][key] for key in playlist["song_ids"]]


def likeplaylist(scene: Scene) -> Goal:
    playlist, liked = scene.pick("music.playlists"), scene.tables["music.liked"]
    liked.pop(playlist["song_ids"][0], None)
    code = """
    liked = [song["song_id"] for song in pages(apis.music.show_liked_songs, access_token=music_token)]
    for song in songs:
        if song["song_id"] not in liked:
            apis.music.like_song(song_id=song["song_id"], access_token=music_token)
    """
    return Goal(
        f'Like all the songs of my playlist "{playlist["title"]}".',
        (fill(FIND_PLAYLIST, title=playlist["title"]), fill(code), DONE),
        tuple(added("music.liked", id=key) for key in playlist["song_ids"] if key not in liked),
        lookups=("music.show_playlists", "music.show_song", "music.show_liked_songs", "music.like_song"),
    )


def genrelist(scene: Scene) -> Goal:
    genre = scene.style.choice(GENRES)
    title = f"My {genre} {scene.rng.choice(['favorites', 'collection', 'picks'])}"
    liked = [scene.tables["music.songs"][key] for key in scene.tables["music.liked"]]
    keys = tuple(song["id"] for song in liked if song["genre"] == genre)
    code = """
    key = apis.music.create_playlist(title=<title>, access_token=music_token)["playlist_id"]
    for song in liked:
        if song["genre"] == <genre>:
            apis.music.add_song_to_playlist(playlist_id=key, song_id=song["song_id"],
                                            access_token=music_token)
    """
    return Goal(
        f'Create a playlist "{title}" with all the {genre} songs that I like, in the order in which my '
        f"liked songs are shown.",
        (LIKED, fill(code, title=title, genre=genre), DONE),
        (added("music.playlists", title=title, song_ids=keys),),
        lookups=("music.show_liked_songs", "music.create_playlist", "music.add_song_to_playlist"),
    )


def topsong(scene: Scene) -> Goal:
    artist = scene.rng.choice(sorted({row["artist"] for row in scene.rows("music.songs")}))
    most = scene.style.random() < 0.5
    rows = sorted(scene.rows("music.songs", artist=artist), key=lambda row: row["play_count"])
    answer = rows[-1 if most else 0]["title"]
    code = """
    songs = pages(apis.music.search_songs, artist=<artist>, access_token=music_token)
    song = sorted(songs, key=lambda song: song["play_count"])[<index>]
    print(song)
    """
    return Goal(
        f"What is the title of the {'most' if most else 'least'} played song by {artist}?",
        (
            fill(code, artist=artist, index=-1 if most else 0),
            'apis.supervisor.complete_task(answer=song["title"])',
        ),
        answer=answer,
        lookups=("music.search_songs",),
    )


def trimlist(scene: Scene) -> Goal:
    playlist, minutes = scene.pick("music.playlists"), scene.style.choice([3, 4, 5])
    songs = songs_of(scene, playlist)
    songs[0]["seconds"], songs[1]["seconds"] = 60 * minutes + 20, 60 * minutes - 20
    keep = tuple(song["id"] for song in songs if song["seconds"] <= 60 * minutes)
    code = """
    for song in songs:
        if song["seconds"] > 60 * <minutes>:
            apis.music.remove_song_from_playlist(playlist_id=playlist["playlist_id"], song_id=song["song_id"],
                                                 access_token=music_token)
    """
    return Goal(
        f'Remove all songs that are longer than {minutes} minutes from my playlist "{playlist["title"]}".',
        (fill(FIND_PLAYLIST, title=playlist["title"]), fill(code, minutes=minutes), DONE),
        (updated("music.playlists", playlist["id"], song_ids=keep),),
        lookups=("music.show_playlists", "music.show_song", "music.remove_song_from_playlist"),
    )


def unlikeold(scene: Scene) -> Goal:
    songs = [scene.tables["music.songs"][key] for key in scene.tables["music.liked"]]
    year = scene.rng.randrange(1995, 2015)
    songs[-1]["release_year"] = year - 3
    code = """
    for song in liked:
        if song["release_year"] < <year>:
            apis.music.unlike_song(song_id=song["song_id"], access_token=music_token)
    """
    return Goal(
        f"Take back my likes of all songs that were released before {year}.",
        (LIKED, fill(code, year=year), DONE),
        tuple(removed("music.liked", song["id"]) for song in songs if song["release_year"] < year),
        lookups=("music.show_liked_songs", "music.unlike_song"),
    )


def textlist(scene: Scene) -> Goal:
    person, playlist = scene.pick("phone.contacts"), scene.pick("music.playlists")
    names = ", ".join(sorted(song["title"] for song in songs_of(scene, playlist)))
    code = """
    text = ", ".join(sorted(song["title"] for song in songs))
    apis.phone.send_text_message(phone_number=person["phone_number"], text=text, access_token=phone_token)
    """
    return Goal(
        f'Text {full_name(person)} the titles of the songs of my playlist "{playlist["title"]}": in '
        f"alphabetical order, separated by a comma and a space.",
        (fill(FIND_PLAYLIST, title=playlist["title"]), find_contact(full_name(person)), fill(code), DONE),
        (sent_text(scene, person, names),),
        lookups=(
            "music.show_playlists",
            "music.show_song",
            "phone.search_contacts",
            "phone.send_text_message",
        ),
    )


def genretime(scene: Scene) -> Goal:
    artist = scene.style.choice(ARTISTS)
    playlist = scene.pick("music.playlists")
    answer = sum(song["seconds"] for song in songs_of(scene, playlist) if song["artist"] != artist)
    code = 'total = sum(song["seconds"] for song in songs if song["artist"] != <artist>)\nprint(total)'
    return Goal(
        f'How many seconds does my playlist "{playlist["title"]}" play without its songs by {artist}?',
        (
            fill(FIND_PLAYLIST, title=playlist["title"]),
            fill(code, artist=artist),
            "apis.supervisor.complete_task(answer=total)",
        ),
        answer=answer,
        lookups=("music.show_playlists", "music.show_song"),
    )


KINDS = (
    Kind("likeplaylist", 2, likeplaylist),
    Kind("genrelist", 2, genrelist),
    Kind("topsong", 1, topsong),
    Kind("trimlist", 2, trimlist),
    Kind("unlikeold", 2, unlikeold),
    Kind("textlist", 3, textlist),
    Kind("genretime", 2, genretime),
)
