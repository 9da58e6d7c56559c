"""`stepscope export`: counters of watched runs, through the official clients."""

from __future__ import annotations

import gzip
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.exporter.prometheus")  # CI installs it
from click.testing import CliRunner
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from prometheus_client import generate_latest

from stepscope.base.watch_format import TIMES
from stepscope.faces.terminal.commands import stepscope
from stepscope.faces.terminal.export import meter_provider
from stepscope.read.watched_run import WatchedRun, read_watched_run
from stepscope.record.watch.requests import Requests
from stepscope.record.watch.watch_file import WatchFile

SECONDS = {"step": 0.2, "input": 0.02, "backward": 0.04}  # of 10 steps


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ten steps of 20 ms, of which 2 ms wait for data and 4 are backward."""
    monkeypatch.setenv("STEPSCOPE_REQUESTS", str(tmp_path / "requests"))
    file = WatchFile(tmp_path / "train.watch")
    ms = {"input": 2.0, "backward": 4.0}
    for step in range(10):
        file.add_step((step, 20_000_000 * step, 20_000_000, *(ms.get(part, 0.0) for part in TIMES)))
    file.put_text({"begun_unix_ns": 0, "created_unix_ns": 0, "rank": 3, "places": []})
    file.flush()
    requests = Requests(file.path)
    yield
    requests.close()
    file.close()


def test_prometheus_gets_the_steps_and_their_parts_by_one_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    provider, readings = meter_provider([PrometheusMetricReader()]), []

    def read(path: Path) -> WatchedRun:
        readings.append(path)
        return read_watched_run(path)

    monkeypatch.setattr("stepscope.read.watched_run.read_watched_run", read)
    lines = [line for line in generate_latest().decode().splitlines() if line.startswith("stepscope_")]
    provider.shutdown()
    assert len(readings) == 1
    assert any(line.startswith("stepscope_steps_total") and line.endswith(" 10.0") for line in lines)
    times = {
        line.split('stepscope_part="')[1].split('"')[0]: float(line.split()[-1])
        for line in lines
        if "part" in line
    }
    assert times == pytest.approx(SECONDS)
    assert all(f'process_pid="{os.getpid()}"' in line and 'stepscope_rank="3"' in line for line in lines)


def test_a_collector_gets_them_by_otlp() -> None:
    received: list[ExportMetricsServiceRequest] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            data = gzip.decompress(data) if self.headers.get("Content-Encoding") == "gzip" else data
            received.append(ExportMetricsServiceRequest.FromString(data))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    exporter = OTLPMetricExporter(f"http://127.0.0.1:{server.server_port}/v1/metrics")
    meter_provider([PeriodicExportingMetricReader(exporter)]).shutdown()  # sends what there is
    server.shutdown()
    server.server_close()
    metrics = {m.name: m for m in received[0].resource_metrics[0].scope_metrics[0].metrics}
    assert metrics["stepscope.steps"].sum.data_points[0].as_int == 10
    parts = {
        point.attributes[-1].value.string_value: point.as_double
        for point in metrics["stepscope.step.time"].sum.data_points
    }
    assert parts == pytest.approx(SECONDS)


def test_where_to_must_be_said() -> None:
    done = CliRunner().invoke(stepscope, ["export"])
    assert done.exit_code == 2
    assert "'--prometheus' or '--otlp'" in done.output


def test_a_period_is_at_least_a_second() -> None:
    done = CliRunner().invoke(stepscope, ["export", "--otlp", "http://127.0.0.1:9", "--every", "0"])
    assert done.exit_code == 2
    assert "'--every'" in done.output
