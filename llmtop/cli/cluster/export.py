"""llmtop export: what this node's GPUs and trainings do, for Prometheus."""

from __future__ import annotations

import os
import platform
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from llmtop.cli.live.command import range_check
from llmtop.cli.output import print_text
from llmtop.errors import EXIT_DONE, NotPossibleHere, UnusableInput
from llmtop.extras import how_to_install
from llmtop.format import printable
from llmtop.model.setting_ranges import MAX_INTERVAL_SECONDS, MIN_INTERVAL_SECONDS
from llmtop.naming.addresses import DCGM_EXPORTER, is_server_url

if TYPE_CHECKING:
    from collectors.base.pipeline import Stage
    from collectors.exporter.stage import ExportStage

PORT = 9401
LOOPBACK = "127.0.0.1"


def _otlp_url(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not is_server_url(value):
        raise click.BadParameter("pass an http or https address, such as http://host:4318/v1/metrics")
    return value


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", help=f"Port to listen on, {PORT} by default.")
@click.option(
    "--bind",
    metavar="ADDRESS",
    default=LOOPBACK,
    show_default=True,
    help="Address to listen on; 0.0.0.0 is all addresses.",
)
@click.option(
    "--allow-host",
    metavar="NAME",
    multiple=True,
    help="Accept this Host header in addition to IP addresses and the names of this machine; .example.org: all "
    "subdomains, *: any. Repeatable.",
)
@click.option("--certfile", metavar="FILE", help="Certificate for TLS.")
@click.option("--keyfile", metavar="FILE", help="Private key of the certificate, if the key is in another file.")
@click.option(
    "--textfile",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Write llmtop.prom to this folder for the textfile collector of node_exporter; listens only if --port "
    "is given.",
)
@click.option(
    "--file-sd",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the address of this exporter to FILE, for file_sd_configs of Prometheus; removed on exit.",
)
@click.option("--all-users", is_flag=True, help="As root: export the trainings of all users (/tmp/llmtop-<uid>).")
@click.option(
    "--dcgm-exporter",
    metavar="URL",
    help="Leave out GPU metrics that the dcgm-exporter at URL exports already. Pass none to export all of them. "
    f"Default: {DCGM_EXPORTER}, if root or this user runs it.",
)
@click.option(
    "--otlp",
    callback=_otlp_url,
    metavar="URL",
    help="Push all series to an OTLP/HTTP receiver after each poll, such as http://host:4318/v1/metrics; needs "
    "the extra otel. Headers: $OTEL_EXPORTER_OTLP_HEADERS. Opens no port by itself.",
)
@click.option(
    "--interval",
    "-i",
    type=float,
    callback=range_check(MIN_INTERVAL_SECONDS, MAX_INTERVAL_SECONDS),
    default=3.0,
    show_default=True,
    metavar="S",
    help=f"Seconds between polls, {MIN_INTERVAL_SECONDS:g} to {MAX_INTERVAL_SECONDS:g}.",
)
@click.option(
    "--rules",
    is_flag=True,
    help="Print recording and alerting rules for Prometheus, with the configured thresholds, and exit.",
)
def export(
    *,
    port: int | None,
    bind: str,
    allow_host: tuple[str, ...],
    certfile: str | None,
    keyfile: str | None,
    textfile: Path | None,
    file_sd: Path | None,
    all_users: bool,
    dcgm_exporter: str | None,
    otlp: str | None,
    interval: float,
    rules: bool,
) -> int:
    """Expose the metrics of this node's GPUs and trainings to Prometheus, without a screen, until ctrl+c or
    SIGTERM.

    Run one per node, in the job and as its user.
    """
    if rules:
        from collectors.prometheus.fleet_rules import render

        print_text(render(), nl=False)
        return EXIT_DONE
    listens = port is not None or (textfile is None and otlp is None)
    _check(certfile, keyfile, file_sd, all_users, listens=listens)
    _need_client()
    from collectors.gpu.selection import GpuSelection
    from collectors.hub import live_hub, live_sources
    from llmtop.cli.live.stream import SnapshotStream

    with ExitStack() as closing:
        stage = _stage(interval, dcgm_exporter, closing)
        stages: list[Stage] = [stage]
        if textfile is not None:
            stages.append(_textfile(textfile, stage, closing))
        if otlp is not None:
            stages.append(_push(otlp, stage, closing))
        if listens:
            where = _ListenAddress(bind, PORT if port is None else port, certfile, keyfile, allow_host)
            _listen(stage, where, file_sd, closing)
        hub = live_hub(
            interval=interval,
            selection=GpuSelection.parse("all") if all_users else None,
            stages=stages,
            make_sources=partial(
                live_sources,
                all_users=all_users,
                engines=False,
                on_every_node=True,
                unattended=True,
                keep_runs=True,
            ),
        )
        SnapshotStream().run(hub, lambda _snapshot: None)
    return EXIT_DONE


def _check(
    certfile: str | None, keyfile: str | None, file_sd: Path | None, all_users: bool, *, listens: bool
) -> None:
    """Refuse what cannot be meant.

    Raises:
        UnusableInput: options that contradict each other.
        NotPossibleHere: --all-users, and this is not root.
    """
    if keyfile is not None and certfile is None:
        raise UnusableInput("--keyfile needs a certificate: pass --certfile")
    if file_sd is not None and not listens:
        raise UnusableInput("--file-sd needs a port to fetch from, and --textfile alone opens none: pass --port")
    if all_users and os.geteuid() != 0:
        raise NotPossibleHere("--all-users reads folders of other users and needs root: sudo llmtop export …")


def _need_client() -> None:
    """Raise with the install command where the extra is missing.

    Raises:
        NotPossibleHere: prometheus-client is missing.
    """
    try:
        import_module("prometheus_client")
    except ImportError:
        raise NotPossibleHere(
            f"llmtop export needs the package prometheus-client; {how_to_install('cluster')}"
        ) from None


def _stage(interval: float, dcgm_url: str | None, closing: ExitStack) -> ExportStage:
    from collectors.exporter.stage import ExportStage

    if dcgm_url == "none":
        return ExportStage(interval=interval)
    from collectors.exporter.dcgm import DcgmExporter

    dcgm = DcgmExporter(dcgm_url, warn=lambda sentence: _print_status(f"llmtop export: {sentence}"))
    closing.callback(dcgm.close)
    dcgm.start()
    return ExportStage(interval=interval, others=dcgm.series, ignored=lambda: dcgm.untrusted_listener)


def _textfile(folder: Path, stage: ExportStage, closing: ExitStack) -> Stage:
    from collectors.exporter.files import Textfile

    writer = Textfile(folder, stage)
    closing.callback(writer.close)
    _print_status(f"llmtop export: {writer.path}")
    return writer


def _push(url: str, stage: ExportStage, closing: ExitStack) -> Stage:
    from collectors.exporter.otlp import OtlpPush

    push = OtlpPush(url, stage, lambda sentence: _print_status(f"llmtop export: {sentence}"))
    closing.callback(push.close)
    return push


class _ListenAddress(NamedTuple):
    """Where to listen, and behind which certificate."""

    bind: str
    port: int
    certfile: str | None
    keyfile: str | None
    allowed: tuple[str, ...]


def _listen(stage: ExportStage, where: _ListenAddress, file_sd: Path | None, closing: ExitStack) -> None:
    from collectors.exporter.files import Discovery
    from collectors.exporter.server import MetricsServer

    server = MetricsServer(stage, where.bind, where.port, where.certfile, where.keyfile, allowed=where.allowed)
    closing.callback(server.close)
    _print_status(f"llmtop export: {server.url}")
    if not server.is_loopback:
        _print_status(
            f"whoever reaches port {server.port} of this machine can read it: names of runs and phases, rates, "
            "GPUs and users' numbers; a firewall, or a proxy that asks who it is, keeps others out"
        )
    if file_sd is None:
        return
    host = platform.node() if server.is_everywhere else where.bind
    entry = Discovery(file_sd, f"[{host}]:{server.port}" if ":" in host else f"{host}:{server.port}")
    closing.callback(entry.close)
    if server.is_loopback:
        _print_status(f"{file_sd} names {where.bind}: only a Prometheus on this machine gets there; see --bind")


def _print_status(sentence: str) -> None:
    print_text(printable(sentence), err=True)
