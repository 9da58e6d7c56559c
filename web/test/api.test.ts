import { describe, expect, it, vi } from "vitest";
import { Client } from "../src/api/client";
import { EmbeddedHost, readEmbedded } from "../src/api/embedded";
import { AskError, type Host } from "../src/api/host";
import { parseKey, requestKey } from "../src/api/request";
import type { SearchAnswer, WireLevel } from "../src/api/types";
import { drawnWire } from "./drawn";

describe("a request", () => {
  it("is its name and the parameters that are not empty, by the alphabet", () => {
    const key = requestKey("search", {
      text: "a b/ü",
      path: "s5.0/t3",
      every: false,
      limit: undefined,
    });
    expect(key).toBe("search?path=s5.0%2Ft3&text=a%20b%2F%C3%BC");
    expect(requestKey("level", { path: "", every: true })).toBe("level?every=1");
    expect(requestKey("overview")).toBe("overview");
  });

  it("is read back", () => {
    const parameters = { path: "s5.0/t3", text: "100 % & more" };
    expect(parseKey(requestKey("search", parameters))).toEqual({ name: "search", parameters });
  });
});

/** A host that answers levels and writes down what it was asked. */
function listening(answer: (request: string) => unknown): Host & { asked: string[] } {
  const asked: string[] = [];
  return {
    live: true,
    leftOut: [],
    asked,
    traces: () => Promise.reject(new Error("unused")),
    ask: (_, request) => {
      asked.push(request);
      return Promise.resolve(answer(request));
    },
  };
}

describe("a client", () => {
  const level = (path: string): WireLevel => drawnWire([], { path });

  it("asks for all levels once, and then for the one that is new", async () => {
    const host = listening((request) =>
      request.startsWith("levels")
        ? { levels: ["", "s5.0"].map(level) }
        : { level: level("s5.0/t3") },
    );
    const client = new Client(host, "one");
    await client.levels("s5.0", false);
    const all = await client.levels("s5.0/t3", false);
    await client.levels("s5.0", false);
    expect(host.asked).toEqual(["levels?path=s5.0", "level?path=s5.0%2Ft3"]);
    expect(all.map((one) => one.path)).toEqual(["", "s5.0", "s5.0/t3"]);
  });

  it("keeps answers, and asks again after an error", async () => {
    const answer = vi
      .fn()
      .mockReturnValueOnce(Promise.reject(new AskError("busy", 409)))
      .mockReturnValue({ rows: [] });
    const host = listening(answer);
    const client = new Client(host, "one");
    await expect(client.kernels({ rank: 0 })).rejects.toThrow("busy");
    await client.kernels({ rank: 0 });
    await client.kernels({ rank: 0 });
    expect(host.asked).toEqual(["kernels?rank=0", "kernels?rank=0"]);
  });
});

describe("the single file", () => {
  const top = drawnWire([{ name: "step 5" }], { path: "" });
  top.operations.id = ["s5.0"];
  const step = drawnWire([{ name: "conv" }, { name: "sgemm" }], { path: "s5.0" });
  const names = {
    path: "s5.0",
    strings: ["aten::conv2d", "volta_sgemm_128x64_nn"],
    short: ["conv2d", "volta_sgemm"],
    paths: ["s5.0/e0", "s5.0/e1"],
    event: [10, 11, 12],
    name: [0, 1, 1],
    place: [0, 1, 1],
    duration_ns: [5, 7, 9],
  };
  const slice = (event: number, ts: number) => ({
    ph: "X",
    ts,
    args: { "stepscope event": event },
  });
  const host = new EmbeddedHost({
    traces: { version: "1", perfetto: null, traces: [] },
    answers: {
      level: { level: top },
      "level?path=s5.0": { level: step },
      "names?path=s5.0": names,
      "details?path=s5.0%2Fe1": { name: "sgemm" },
      "select?module=4": { title: "layer1" },
      "trace?path=s5.0": {
        traceEvents: [
          { ph: "M", args: { name: "python" } },
          slice(10, 1),
          slice(11, 2),
          slice(12, 3),
          { ph: "s", id: 1, ts: 1 },
          { ph: "f", id: 1, ts: 2 },
          { ph: "s", id: 2, ts: 2 },
          { ph: "f", id: 2, ts: 3 },
        ],
      },
    },
    left_out: ["the levels below 4,000 operations of 9 raw events or fewer"],
  });

  it("makes the levels of a path out of each one", async () => {
    const { levels } = (await host.ask("", "levels?every=1&path=s5.0")) as { levels: WireLevel[] };
    expect(levels.map((one) => one.path)).toEqual(["", "s5.0"]);
  });

  it("searches both names in any case, and counts what each operation holds", async () => {
    const found = (await host.ask("", "search?path=s5.0&text=SGEMM")) as SearchAnswer;
    expect(found.total).toBe(2);
    expect(found.levels).toEqual([
      { path: "", hits: [2] },
      { path: "s5.0", hits: [0, 2] },
    ]);
    expect(found.first.map((one) => one.event)).toEqual([12, 11]);
  });

  it("finds where an event is, and tells its details", async () => {
    expect(await host.ask("", "path?event=11")).toEqual({
      event: 11,
      path: "s5.0/e1",
      level: "s5.0",
    });
    expect(await host.ask("", "details?event=11")).toEqual({ name: "sgemm" });
  });

  it("answers a choice without what was on screen", async () => {
    expect(await host.ask("", "select?module=4&path=s5.0")).toEqual({ title: "layer1" });
  });

  it("cuts an operation's raw events out of its step's, with the arrows between them", async () => {
    const { traceEvents } = (await host.ask("", "trace?path=s5.0%2Fe1")) as {
      traceEvents: { ph: string; ts?: number }[];
    };
    expect(traceEvents.map(({ ph, ts }) => [ph, ts])).toEqual([
      ["M", undefined],
      ["X", 2],
      ["X", 3],
      ["s", 2],
      ["f", 3],
    ]);
  });

  it("says what it leaves out where an answer is missing", async () => {
    await expect(host.ask("", "kernels?rank=0")).rejects.toThrow(
      /leaves out the levels below 4,000/,
    );
  });
});

it("reads base64 of gzip of JSON", async () => {
  const stream = new Blob(['{"left_out":["ü"]}'])
    .stream()
    .pipeThrough(new CompressionStream("gzip"));
  const packed = Buffer.from(await new Response(stream).arrayBuffer()).toString("base64");
  expect(await readEmbedded(`\n${packed}\n`)).toEqual({ left_out: ["ü"] });
});
