"""Songs, playlists and liked songs."""

from __future__ import annotations

from jaxagent.envs.world.apps.account import MESSAGE, login_of, logout_of
from jaxagent.envs.world.engine import Api, App, World, page, view

SONG = {
    "song_id": 1,
    "title": "string",
    "artist": "string",
    "genre": "string",
    "seconds": 1,
    "release_year": 1,
    "play_count": 1,
}
PLAYLIST = {"playlist_id": 1, "title": "string", "song_ids": [1]}


def search_songs(
    world: World,
    access_token: str,
    query: str = "",
    artist: str | None = None,
    genre: str | None = None,
    page_index: int = 0,
    page_limit: int = 5,
):
    """Search all songs by title, artist and genre.

    access_token: access token from music login
    query: part of the title
    artist: only songs of this artist
    genre: only songs of this genre
    page_index: number of the page, from 0
    page_limit: records a page, 1 to 20
    """
    rows = [
        view(row, *SONG)
        for row in world.rows("music.songs")
        if query.casefold() in row["title"].casefold()
        and artist in (None, row["artist"])
        and genre in (None, row["genre"])
    ]
    return page(rows, page_index, page_limit)


def show_song(world: World, song_id: int, access_token: str):
    """Show one song.

    song_id: id of the song
    access_token: access token from music login
    """
    return view(world.get("music.songs", song_id, "song"), *SONG)


def show_liked_songs(world: World, access_token: str, page_index: int = 0, page_limit: int = 5):
    """Show the songs that the person likes.

    access_token: access token from music login
    page_index: number of the page, from 0
    page_limit: records a page, 1 to 20
    """
    songs = world.tables["music.songs"]
    rows = [view(songs[row["id"]], *SONG) for row in world.rows("music.liked")]
    return page(rows, page_index, page_limit)


def like_song(world: World, song_id: int, access_token: str):
    """Like a song.

    song_id: id of the song
    access_token: access token from music login
    """
    world.get("music.songs", song_id, "song")
    if song_id in world.tables["music.liked"]:
        raise world.refuse(409, "You already like this song.")
    world.add("music.liked", song_id)
    return {"message": "Song liked."}


def unlike_song(world: World, song_id: int, access_token: str):
    """Take back the like of a song.

    song_id: id of the song
    access_token: access token from music login
    """
    world.get("music.songs", song_id, "song")
    if song_id not in world.tables["music.liked"]:
        raise world.refuse(409, "You do not like this song.")
    world.remove("music.liked", song_id)
    return {"message": "Song unliked."}


def show_playlists(world: World, access_token: str, page_index: int = 0, page_limit: int = 5):
    """Show the playlists with the ids of their songs.

    access_token: access token from music login
    page_index: number of the page, from 0
    page_limit: records a page, 1 to 20
    """
    return page([view(row, *PLAYLIST) for row in world.rows("music.playlists")], page_index, page_limit)


def show_playlist(world: World, playlist_id: int, access_token: str):
    """Show one playlist.

    playlist_id: id of the playlist
    access_token: access token from music login
    """
    return view(world.get("music.playlists", playlist_id, "playlist"), *PLAYLIST)


def create_playlist(world: World, title: str, access_token: str):
    """Create an empty playlist.

    title: title of the playlist
    access_token: access token from music login
    """
    return {
        "message": "Playlist created.",
        "playlist_id": world.add("music.playlists", title=title, song_ids=()),
    }


def add_song_to_playlist(world: World, playlist_id: int, song_id: int, access_token: str):
    """Add a song at the end of a playlist.

    playlist_id: id of the playlist
    song_id: id of the song
    access_token: access token from music login
    """
    songs = world.get("music.playlists", playlist_id, "playlist")["song_ids"]
    world.get("music.songs", song_id, "song")
    if song_id in songs:
        raise world.refuse(409, "The song is already in the playlist.")
    world.change("music.playlists", playlist_id, song_ids=(*songs, song_id))
    return {"message": "Song added to the playlist."}


def remove_song_from_playlist(world: World, playlist_id: int, song_id: int, access_token: str):
    """Remove a song from a playlist.

    playlist_id: id of the playlist
    song_id: id of the song
    access_token: access token from music login
    """
    songs = world.get("music.playlists", playlist_id, "playlist")["song_ids"]
    if song_id not in songs:
        raise world.refuse(404, "The song is not in the playlist.")
    world.change("music.playlists", playlist_id, song_ids=tuple(song for song in songs if song != song_id))
    return {"message": "Song removed from the playlist."}


def delete_playlist(world: World, playlist_id: int, access_token: str):
    """Delete a playlist.

    playlist_id: id of the playlist
    access_token: access token from music login
    """
    world.get("music.playlists", playlist_id, "playlist")
    world.remove("music.playlists", playlist_id)
    return {"message": "Playlist deleted."}


APP = App(
    "music",
    "Songs, playlists and liked songs.",
    (
        login_of("music"),
        logout_of("music"),
        Api(search_songs, [SONG]),
        Api(show_song, SONG),
        Api(show_liked_songs, [SONG]),
        Api(like_song, MESSAGE),
        Api(unlike_song, MESSAGE),
        Api(show_playlists, [PLAYLIST]),
        Api(show_playlist, PLAYLIST),
        Api(create_playlist, MESSAGE | {"playlist_id": 1}),
        Api(add_song_to_playlist, MESSAGE),
        Api(remove_song_from_playlist, MESSAGE),
        Api(delete_playlist, MESSAGE),
    ),
)
