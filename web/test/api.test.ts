import { describe, expect, it, vi } from "vitest";
import { Client } from "../src/api/client";
import { readPacked } from "../src/api/element";
import { EmbeddedHost } from "../src/api/embedded";
import { AskError, type Host } from "../src/api/host";
import { parseKey, requestKey } from "../src/api/request";
import type {
  DetailColumns,
  Details,
  Place,
  SearchAnswer,
  SearchHits,
  StepAnswer,
  WireLevel,
} from "../src/api/types";
import { drawnWire } from "./drawn";
import answers from "./step.json";

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
    whatIfs: [],
    asked,
    traces: () => Promise.reject(new Error("unused")),
    open: () => Promise.resolve(),
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

  it("asks for no level that came with others ahead", async () => {
    const host = listening((request) =>
      request.startsWith("levels_inside")
        ? { path: "s5.0", levels: ["s5.0/t3", "s5.0/t4"].map(level) }
        : { levels: ["", "s5.0"].map(level) },
    );
    const client = new Client(host, "one");
    await client.levels("s5.0", false);
    await client.askInside("s5.0", false);
    await client.askInside("s5.0", false);
    const all = await client.levels("s5.0/t4", false);
    expect(host.asked).toEqual(["levels?path=s5.0", "levels_inside?path=s5.0"]);
    expect(all.map((one) => one.path)).toEqual(["", "s5.0", "s5.0/t4"]);
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

const drawn = answers as unknown as {
  step: StepAnswer;
  step_details: DetailColumns;
  levels: { every: number; level: WireLevel }[];
  details: Details[];
  places: Place[];
};

function eventsNamed(name: string): number[] {
  const { names, events } = drawn.step;
  return events.event.filter((_, row) => names[events.name[row]!] === name);
}

function placeOf(event: number): Place {
  return drawn.places.find((one) => one.event === event)!;
}

/** A level with its texts in place of indexes into `strings`, which may hold others too. */
function inWords({ strings, operations, device, ...level }: WireLevel): unknown {
  const words = (codes: number[]) => codes.map((code) => strings[code]);
  const { name, kind, bound_by } = operations;
  const texts = { name: words(name), kind: words(kind), bound_by: words(bound_by) };
  return {
    ...level,
    operations: { ...operations, ...texts },
    device: { ...device, name: words(device.name) },
  };
}

describe("the single file", () => {
  const top = drawnWire([{ name: "step 1" }], { path: "" });
  top.operations.id = ["s1.0"];
  const [sgemm] = eventsNamed("sgemm");
  const launch = drawn.details.find((one) => one.path === placeOf(sgemm!).level)!.event as number;
  const slice = (event: number, ts: number) => ({
    ph: "X",
    ts,
    args: { "stepscope event": event },
  });
  const host = new EmbeddedHost({
    traces: { perfetto: null, traces: [], whole: "" },
    answers: {
      level: { level: top },
      "level?every=1": { level: top },
      "step?path=s1.0": drawn.step,
      "step_details?path=s1.0": drawn.step_details,
      "select?module=4": { title: "layer1" },
      overview: { rank: 0 },
      modules: { evidence: "of rank 0" },
      "modules?rank=1": { evidence: "of rank 1" },
      whatif: { reason: "" },
      "whatif?changes=amp%0Azero": { reason: "of both" },
      "trace?path=s1.0": {
        traceEvents: [
          { ph: "M", args: { name: "python" } },
          slice(0, 1),
          slice(launch, 2),
          slice(sgemm!, 3),
          { ph: "s", id: 1, ts: 1 },
          { ph: "f", id: 1, ts: 2 },
          { ph: "s", id: 2, ts: 2 },
          { ph: "f", id: 2, ts: 3 },
        ],
      },
    },
    left_out: ["the levels below 4,000 operations of 9 raw events or fewer"],
  });

  it("has every level as the server answers it", async () => {
    for (const { every, level } of drawn.levels) {
      const key = requestKey("level", { path: level.path, every: every === 1 });
      const found = (await host.ask("", key)) as { level: WireLevel };
      expect(inWords(found.level)).toEqual(inWords(level));
    }
  });

  it("knows of every operation what the server answers", async () => {
    for (const details of drawn.details)
      expect(await host.ask("", requestKey("details", { path: details.path }))).toEqual(details);
  });

  it.each([
    ["modules?rank=0&step=7", "of rank 0"],
    ["modules?rank=1&step=7", "of rank 1"],
  ])("answers %s with means over the steps of that rank", async (asked, evidence) =>
    expect(await host.ask("", asked)).toEqual({ evidence }),
  );

  it("has no answer of one rank for another", async () => {
    await expect(host.ask("", "modules?rank=2")).rejects.toThrow("Not in this file");
    await expect(host.ask("", "sources?rank=1")).rejects.toThrow("Not in this file");
  });

  it("has the levels of a path", async () => {
    const { levels } = (await host.ask("", "levels?every=1&path=s1.0")) as { levels: WireLevel[] };
    expect(levels.map((one) => one.path)).toEqual(["", "s1.0"]);
  });

  it("searches both names in any case, and counts what each operation holds", async () => {
    const found = (await host.ask("", "search?every=1&path=s1.0&text=SGEMM")) as SearchAnswer;
    const events = [...eventsNamed("sgemm"), ...eventsNamed("sgemm_nt")];
    expect(found.total).toBe(events.length);
    expect(found.levels[0]).toEqual({ path: "", hits: [events.length] });
    const inStages = found.levels[1]!.hits.reduce((sum, one) => sum + one, 0);
    expect(inStages).toBe(events.length);
  });

  it("lists every hit with totals by name, as the server does", async () => {
    const found = (await host.ask("", "search_hits?text=SGEMM")) as SearchHits;
    const events = [...eventsNamed("sgemm"), ...eventsNamed("sgemm_nt")];
    expect(new Set(found.events.event)).toEqual(new Set(events));
    const counts = found.names.map(({ name, count }) => [name, count, eventsNamed(name).length]);
    for (const [, count, expected] of counts) expect(count).toBe(expected);
    const times = found.names.map((one) => one.total_ns);
    expect(times).toEqual([...times].sort((a, b) => b - a));
    const total = times.reduce((sum, one) => sum + one, 0);
    expect(total).toBe(found.events.duration_ns.reduce((sum, one) => sum + one, 0));
    expect(found.names[found.events.name[0]!]!.name).toMatch(/sgemm/);
  });

  it("finds where an event is, and its details", async () => {
    for (const place of drawn.places)
      expect(await host.ask("", `path?event=${place.event}`)).toEqual(place);
    expect(await host.ask("", requestKey("details", { path: placeOf(sgemm!).path }))).toMatchObject(
      { name: "sgemm" },
    );
  });

  it("has the what-ifs that were asked for, whatever part of them is on screen", async () => {
    expect(host.whatIfs).toEqual(["", "amp\nzero"]);
    const asked = requestKey("whatif", { changes: "amp\nzero", rank: 0, most: 20_000 });
    expect(await host.ask("", asked)).toEqual({ reason: "of both" });
  });

  it("answers a choice without what was on screen", async () => {
    expect(await host.ask("", "select?module=4&path=s1.0")).toEqual({ title: "layer1" });
  });

  it("cuts an operation's raw events out of its step's, with the arrows between them", async () => {
    const { traceEvents } = (await host.ask(
      "",
      requestKey("trace", { path: placeOf(sgemm!).level }),
    )) as {
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
  expect(await readPacked(`\n${packed}\n`)).toEqual({ left_out: ["ü"] });
});

describe("tiles", () => {
  const tilesOf = (request: string) => {
    const { name, parameters } = parseKey(request);
    const wanted = (parameters.wanted ?? "").split(",");
    if (name !== "tiles") return { alone: request };
    return {
      slices: wanted.filter((one) => one.startsWith("t")).map((track) => ({ track })),
      counters: wanted.filter((one) => one.startsWith("c")).map((counter) => ({ counter })),
    };
  };

  it("that a server is asked for at one moment are one request", async () => {
    const host = listening(tilesOf);
    const { tiles } = new Client({ ...host, ask: host.ask, live: true }, "0");
    const found = await Promise.all([
      tiles.slices("t1", 3, 5),
      tiles.counter("c0", 3, 5),
      tiles.slices("t2", 3, 5),
    ]);
    expect(found).toEqual([{ track: "t1:3:5" }, { counter: "c0:3:5" }, { track: "t2:3:5" }]);
    expect(host.asked.map((one) => parseKey(one).parameters.wanted)).toEqual([
      "t1:3:5,c0:3:5,t2:3:5",
    ]);
    await tiles.slices("t1", 4, 0);
    expect(host.asked).toHaveLength(2);
  });

  it("are at most 32 in one request, and fail together", async () => {
    const host = listening(() => Promise.reject(new AskError("gone")));
    const { tiles } = new Client({ ...host, ask: host.ask, live: true }, "0");
    const all = Array.from({ length: 40 }, (_, tile) => tiles.slices("t1", 9, tile));
    const settled = await Promise.allSettled(all);
    expect(settled.every((one) => one.status === "rejected")).toBe(true);
    expect(host.asked.map((one) => parseKey(one).parameters.wanted!.split(",").length)).toEqual([
      32, 8,
    ]);
  });

  it("of a file are asked for one by one", async () => {
    const { tiles } = new Client({ ...listening(tilesOf), live: false }, "0");
    expect(await tiles.counter("c0", 1, 0)).toEqual({ alone: "counter?counter=c0&tile=0&zoom=1" });
  });
});
