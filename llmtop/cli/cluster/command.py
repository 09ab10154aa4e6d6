"""llmtop cluster: all nodes, from the site's Prometheus."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from llmtop.cli.live.command import range_check, require_terminal
from llmtop.cli.output import write_json, write_text
from llmtop.errors import EXIT_DONE, NotPossibleHere, UnusableInput
from llmtop.extras import how_to_install
from llmtop.model.setting_ranges import MAX_INTERVAL_SECONDS, MIN_CLUSTER_INTERVAL_SECONDS
from llmtop.naming.addresses import PROMETHEUS_EXAMPLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectors.prometheus.client import Credentials
    from collectors.prometheus.cluster import Cluster
    from collectors.prometheus.cluster_view import ClusterView
    from collectors.prometheus.source import ClusterSource

VARIABLE = "LLMTOP_PROMETHEUS"
TOKEN_VARIABLE, PASSWORD_VARIABLE = "LLMTOP_PROMETHEUS_TOKEN", "LLMTOP_PROMETHEUS_PASSWORD"


@click.command()
@click.option(
    "--prometheus",
    "url",
    metavar="URL",
    help=f"URL of Prometheus, such as {PROMETHEUS_EXAMPLE}; by default ${VARIABLE}.",
)
@click.option("--run", metavar="NAME", help="Show only this run, by its name in the header.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help=f"File with a bearer token; or set ${TOKEN_VARIABLE}.",
)
@click.option(
    "--user", metavar="NAME", help=f"User for basic authentication; set the password in ${PASSWORD_VARIABLE}."
)
@click.option("--ca", metavar="FILE", help="CA certificates to verify the server.")
@click.option("--org", metavar="ID", help="Value of X-Scope-OrgID, for Mimir and Cortex.")
@click.option(
    "--interval",
    "-i",
    type=float,
    callback=range_check(MIN_CLUSTER_INTERVAL_SECONDS, MAX_INTERVAL_SECONDS),
    default=5.0,
    show_default=True,
    metavar="S",
    help=f"Seconds between polls, {MIN_CLUSTER_INTERVAL_SECONDS:g} to {MAX_INTERVAL_SECONDS:g}; longer if "
    "the server is slow.",
)
@click.option("--once", is_flag=True, help="Print the current state as text and exit; with --json, as one object.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line and poll, without a screen.")
@click.option("--ascii", is_flag=True, help="Draw with ASCII characters only.")
@click.option("--theme", metavar="NAME", help="Colour theme, as in llmtop live.")
def cluster(
    *,
    url: str | None,
    run: str | None,
    token_file: Path | None,
    user: str | None,
    ca: str | None,
    org: str | None,
    interval: float,
    once: bool,
    as_json: bool,
    ascii: bool,
    theme: str | None,
) -> int:
    """Watch a cluster whose nodes run llmtop export, through Prometheus."""
    url = url or server_url()
    if not url:
        raise UnusableInput(
            f"no Prometheus configured. Pass --prometheus {PROMETHEUS_EXAMPLE}, set {VARIABLE}, or set "
            f'prometheus = "{PROMETHEUS_EXAMPLE}" in [cluster] of config.toml'
        )
    if not (once or as_json):
        require_terminal("llmtop cluster --once or --json")
    _need_client()
    from collectors.prometheus.client import Client
    from collectors.prometheus.cluster import Cluster

    client = Client(url, _access(url, token_file, user, ca, org))
    watched = Cluster(client, run)
    if once:
        return _print_once(watched, as_json)
    if as_json:
        return _stream(watched, interval)
    from tui.cluster.show import show

    return show(watched, interval, ascii=ascii, theme=theme)


def server_url() -> str | None:
    """Return the server's URL where the command line does not name one: of the environment, else of the
    configuration."""
    from llmtop.config import current

    return os.environ.get(VARIABLE) or current().cluster.prometheus


def accused_ranks(url: str, run: str) -> set[int]:
    """Return the ranks of a run that hang or are late, from Prometheus.

    Raises:
        NotPossibleHere: it does not answer, or cannot be queried from here.
        UnusableInput: that is no URL.
    """
    _need_client()
    from collectors.prometheus.client import Client
    from collectors.prometheus.cluster import Cluster
    from llmtop.config import current

    said = current().cluster
    token_file = None if said.token_file is None else Path(said.token_file).expanduser()
    client = Client(url, _access(url, token_file, said.user, said.ca, said.org))
    view = Cluster(client, run).query_view()
    client.close()
    if view.problems and view.nodes_up is None:
        raise NotPossibleHere(view.problems[0])
    late = [one.rank for one in view.late if one.run == run and one.is_straggler]
    hung = [one.rank or "" for one in view.hung if one.run == run]
    return {int(rank) for rank in hung or late if rank.isdecimal()}


def _access(url: str, token_file: Path | None, user: str | None, ca: str | None, org: str | None) -> Credentials:
    from urllib.parse import unquote

    from collectors.prometheus.client import Credentials, read_token, split_url

    parts = split_url(url)
    token = os.environ.get(TOKEN_VARIABLE) if token_file is None else read_token(token_file)
    password = os.environ.get(PASSWORD_VARIABLE) or unquote(parts.password or "")
    name = user or (None if parts.username is None else unquote(parts.username))
    return Credentials(token=token or None, user=name, password=password, ca=ca, org=org)


def _need_client() -> None:
    """Raise with the install command where the extra is missing.

    Raises:
        NotPossibleHere: httpx is missing.
    """
    try:
        import_module("httpx")
    except ImportError:
        raise NotPossibleHere(f"llmtop cluster needs the package httpx; {how_to_install('cluster')}") from None


def _print_once(watched: Cluster, as_json: bool) -> int:
    from llmtop.cli.cluster.text import render
    from llmtop.format import encode_json

    view = watched.query_view()
    if as_json:
        write_json(encode_json(view))
    elif not (view.problems and view.nodes_up is None):
        write_text(render(view))
    if view.problems and view.nodes_up is None:
        raise NotPossibleHere(view.problems[0])
    return EXIT_DONE


def _stream(watched: Cluster, interval: float) -> int:
    from collectors.prometheus.source import ClusterSource
    from llmtop.cli.live.stream import SnapshotStream
    from llmtop.format import encode_json

    def write(view: ClusterView) -> None:
        write_json(encode_json(view))

    SnapshotStream().run(_Views(ClusterSource(watched, interval)), write)
    return EXIT_DONE


class _Views:
    """A source's views alone, without charts."""

    def __init__(self, source: ClusterSource) -> None:
        self._source = source
        self.close = source.close

    def start(self, on_view: Callable[[ClusterView], None]) -> None:
        self._source.start(lambda view, _charts: on_view(view))
