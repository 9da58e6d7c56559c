"""`stepscope export`: the times of watched runs for Prometheus, or for a collector of OpenTelemetry."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from stepscope.base.watch_format import TIMES
from stepscope.errors import IngestError, ServeError
from stepscope.faces.terminal.options import at_least_one
from stepscope.record.watch.requests import watched_runs
from stepscope.version import __version__

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricReader

    from stepscope.read.watched_run import WatchedRun

_PERIOD_S = 15  # as Prometheus is configured to scrape in its own examples


@click.command()
@click.option("--prometheus", "port", type=click.IntRange(0, 65535), metavar="PORT", help="Port to serve on.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address for --prometheus.")
@click.option("--otlp", metavar="URL", help="Where to send them, such as http://localhost:4318/v1/metrics.")
@at_least_one("--every", _PERIOD_S, "With --otlp: seconds between two exports.")
def export(port: int | None, host: str, otlp: str | None, every: int) -> None:
    """Export the times of your watched runs on this machine, until interrupted.

    Counters: stepscope.steps, and stepscope.step.time in seconds by stepscope.part. They come
    from the runs' files, so the runs are not disturbed.
    """
    if port is None and otlp is None:
        raise click.UsageError("Missing option '--prometheus' or '--otlp'.")
    try:
        provider = meter_provider([*_readers(port, otlp, every)])
        if port is not None:
            from prometheus_client import start_http_server

            server, _ = start_http_server(port, host)
            click.echo(f"http://{host}:{server.server_port}/metrics", err=True)
    except ImportError:
        raise ServeError("stepscope export needs its clients: pip install 'stepscope[export]'") from None
    except OSError as error:
        raise ServeError(f"cannot serve {host}:{port}: {error.strerror}") from None
    with suppress(KeyboardInterrupt):
        threading.Event().wait()
    provider.shutdown()


def _readers(port: int | None, otlp: str | None, period_s: float) -> Iterator[MetricReader]:
    if port is not None:
        from opentelemetry.exporter.prometheus import PrometheusMetricReader

        yield PrometheusMetricReader()
    if otlp is not None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        yield PeriodicExportingMetricReader(OTLPMetricExporter(otlp), 1000 * period_s)


def meter_provider(readers: Sequence[MetricReader]) -> MeterProvider:
    """Counters of all watched runs, which these readers ask for."""
    from opentelemetry.metrics import Observation
    from opentelemetry.sdk.metrics import MeterProvider

    runs: list[tuple[dict[str, int], WatchedRun]] = []

    def steps(_: CallbackOptions) -> Iterator[Observation]:
        runs[:] = _runs()  # for both counters, which are asked in the order in which they were made
        for about, run in runs:
            yield Observation(int(run.totals["step"]), about)

    def seconds(_: CallbackOptions) -> Iterator[Observation]:
        for about, run in list(runs):
            for part, total in _seconds(run).items():
                yield Observation(total, {**about, "stepscope.part": part})

    provider = MeterProvider(readers)
    meter = provider.get_meter("stepscope", __version__)
    meter.create_observable_counter("stepscope.steps", [steps], "{step}", "Steps that have ended.")
    about = "Time of steps, and of their parts, which may overlap."
    meter.create_observable_counter("stepscope.step.time", [seconds], "s", about)
    return provider


def _runs() -> Iterator[tuple[dict[str, int], WatchedRun]]:
    """Each run, with what tells it from others."""
    from stepscope.read.watched_run import read_watched_run

    for pid, file in watched_runs().items():
        with suppress(IngestError):  # it was removed meanwhile
            run = read_watched_run(file)
            yield {"process.pid": pid, "stepscope.rank": run.facts.rank}, run


def _seconds(run: WatchedRun) -> dict[str, float]:
    """Of all steps, by part; a part that is not known of a framework takes no time."""
    wall_s = {"step": 1e-9 * float(run.totals["wall_ns"])}
    parts = {part: 1e-3 * float(run.totals[part]) * int(run.totals["step"]) for part in TIMES}
    return {part: seconds for part, seconds in {**wall_s, **parts}.items() if seconds}
