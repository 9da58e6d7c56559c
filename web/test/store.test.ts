import { describe, expect, it } from "vitest";
import type { Host } from "../src/api/host";
import type { TraceEntry, Traces } from "../src/api/types";
import { memoryOf } from "../src/state/memory";
import { choiceOf, othersOf } from "../src/state/pair";
import { Store } from "../src/state/store";
import { findingsOf } from "../src/views/findings";
import { shownOf } from "../src/views/timeline/pair";

/** A server that answers when the test says so. */
class Slow implements Host {
  readonly live = true;
  readonly leftOut: string[] = [];
  readonly whatIfs: string[] = [];
  private readonly waiting = new Map<string, [(answer: unknown) => void, (why: Error) => void]>();

  traces(): Promise<Traces> {
    return new Promise(() => {});
  }
  async open(): Promise<void> {}
  ask(_trace: string, request: string): Promise<unknown> {
    return new Promise((...how) => this.waiting.set(request, how));
  }
  get asked(): string[] {
    return [...this.waiting.keys()];
  }
  async answer(request: string, answer: unknown): Promise<void> {
    const [resolve, reject] = this.waiting.get(request)!;
    if (answer instanceof Error) reject(answer);
    else resolve(answer);
    await new Promise((done) => setTimeout(done));
  }
}

const read = (id: string, rest: Partial<TraceEntry> = {}): TraceEntry => ({
  ...{ id, name: id, path: id, state: "ready", progress: 1, message: "", has_steps: true },
  ...rest,
});

function shown(): { host: Slow; store: Store; at: () => (string | null)[] } {
  const host = new Slow();
  const store = new Store(host, "#path=s1.0");
  store.traces.value = { perfetto: null, whole: "", traces: [read("a")] };
  return { host, store, at: () => [store.view.value.path, store.view.value.chosen] };
}

const place = (event: number) => ({
  event,
  path: `s1.0/t${event}/e${event}`,
  level: `s1.0/t${event}`,
});

describe("an answer that leads somewhere", () => {
  it("leads there", async () => {
    const { host, store, at } = shown();
    void store.goTo(1);
    await host.answer("path?event=1", place(1));
    expect(at()).toEqual(["s1.0/t1", "s1.0/t1/e1"]);
  });

  it("leads nowhere when it comes after that of a later click", async () => {
    const { host, store, at } = shown();
    void store.goTo(1);
    void store.goTo(2);
    await host.answer("path?event=2", place(2));
    await host.answer("path?event=1", place(1));
    expect(at()).toEqual(["s1.0/t2", "s1.0/t2/e2"]);
  });

  it("takes nobody away from where they went meanwhile", async () => {
    const { host, store, at } = shown();
    void store.descend();
    void store.choosePart({ kernel: "gemm" });
    await host.answer("levels?path=s1.0", new Error("too late to matter"));
    expect(store.view.value.subject).toEqual({ kernel: "gemm" });
    expect(store.notice.value).toBe("");
    store.open("s1.0/t7");
    await host.answer("select?kernel=gemm&path=s1.0", { target: place(3), title: "gemm" });
    expect(at()).toEqual(["s1.0/t7", "s1.0/t7"]);
  });

  it("says why it leads nowhere", async () => {
    const { host, store } = shown();
    void store.descend();
    await host.answer("levels?path=s1.0", new Error("no such step"));
    expect(store.notice.value).toBe("no such step");
    void store.choosePart({ kernel: "gemm" });
    await host.answer("select?kernel=gemm&path=s1.0", { target: null, title: "gemm" });
    expect(store.notice.value).toBe("gemm has no event in any step.");
  });
});

describe("a question that not every trace has an answer to", () => {
  const has = { memory: false, contexts: false };

  it("waits until the trace is known to have one", async () => {
    const { host, store } = shown();
    [memoryOf(store), findingsOf(store)];
    expect(host.asked).not.toContain("memory");
    await host.answer("overview", {
      ranks: [0],
      rank: 0,
      facts: {},
      has: { ...has, memory: true },
    });
    expect(host.asked).toEqual(expect.arrayContaining(["memory", "findings"]));
  });

  it("is not asked of a trace that has none", async () => {
    const { host, store } = shown();
    [memoryOf(store), findingsOf(store)];
    await host.answer("overview", { ranks: [0], rank: 0, facts: null, has });
    expect(host.asked).not.toContain("memory");
    expect(host.asked).not.toContain("findings");
  });
});

describe("what a trace can be compared with", () => {
  it("has steps, and is read or will be when it is asked for", () => {
    const { store } = shown();
    const others = [
      read("snapshot", { has_steps: false }),
      read("broken", { state: "failed" }),
      read("late", { state: "loading" }),
      read("closed", { state: "closed" }),
      read("b"),
    ];
    store.traces.value = { perfetto: null, whole: "", traces: [read("a"), ...others] };
    expect(othersOf(store).map((one) => one.id)).toEqual(["closed", "b"]);
    expect(choiceOf(store).value.against).toBe("closed");
    expect(shownOf(store).map((one) => one.name)).toEqual(["Measured", "Predicted", "Other run"]);
  });
});
