import { describe, expect, it } from "vitest";
import type { BatchHost, LineShare } from "../src/api/batch_host";
import type {
  BatchAnswer,
  BatchProfile,
  CostNode,
  DevicesAnswer,
  DevicesReply,
  Point,
  PanelPrediction as Prediction,
} from "../src/api/batch_types";
import { BatchStore } from "../src/state/batch";

const CURVE = [8, 16, 32, 64].map((batch) => ({ batch }) as Prediction);

const CALL = { kind: "module", name: "block", file: "/p/net.py", line: 3, ms: 6 };
const NET = { kind: "module", name: "net", ms: 8, children: [CALL] } as unknown as CostNode;

/** A source with a number in it: asked and written to, it answers when the test says so. */
class Source implements BatchHost {
  readonly edits = true;
  readonly knowsDevices = true;
  written = 32;
  points: Point[] = [];
  problem: string | null = null;
  explored: LineShare[] | null = null;
  lit: [string | null, number] | null = null;
  private readonly waiting: (() => void)[] = [];
  private changed: () => void = () => undefined;

  ask(): Promise<BatchAnswer> {
    const { written } = this; // as it is now, however late the answer comes
    const breakdown = { tree: { kind: "step", name: "step", children: [NET] } };
    const profile = { batch: 32, curve: CURVE, points: this.points, breakdown };
    const batch = profile as unknown as BatchProfile;
    return this.later(() => ({ batch, problem: null, written }));
  }
  devices(): Promise<DevicesReply> {
    const predictions = [16, 32].map((batch) => ({ batch }));
    const devices = { devices: [{ name: "A100", predictions }] } as DevicesAnswer;
    return this.later(() => ({
      devices: this.problem ? null : devices,
      problem: this.problem,
    }));
  }
  choose(batch: number): Promise<void> {
    return this.later(() => void (this.written = batch));
  }
  /** Answer the question or write the choice that has waited longest, or a later one. */
  async answer(place = 0): Promise<void> {
    this.waiting.splice(place, 1)[0]!();
    await new Promise((resolve) => setTimeout(resolve));
  }
  /** Tell that there is something new. */
  change(): void {
    this.changed();
  }
  onChanged(act: () => void): void {
    this.changed = act;
  }
  reveal(): void {}
  highlight(...line: [string | null, number]): void {
    this.lit = line;
  }
  explore(lines: LineShare[] | null): void {
    this.explored = lines;
  }
  onLine(): void {}

  private later<T>(answer: () => T): Promise<T> {
    return new Promise((resolve) => this.waiting.push(() => resolve(answer())));
  }
}

async function shown(): Promise<{ source: Source; store: BatchStore; size: () => number }> {
  const source = new Source();
  const store = new BatchStore(source);
  void store.load();
  await source.answer();
  return { source, store, size: () => store.chosen.value!.batch };
}

describe("the number shown", () => {
  it("is the one in the source, also when it is changed there", async () => {
    const { source, size } = await shown();
    expect(size()).toBe(32);
    source.written = 16;
    source.change();
    await source.answer();
    expect(size()).toBe(16);
  });

  it("stays as chosen while answers tell of the source before the choice", async () => {
    const { source, store, size } = await shown();
    source.change(); // asked before the choice, answered after it
    store.choose(CURVE[3]!);
    await source.answer();
    expect(size()).toBe(64);
    source.change(); // asked before the choice is written, answered after it
    await source.answer();
    expect(source.written).toBe(64);
    await source.answer();
    expect(size()).toBe(64);
  });

  it("is that of the newest answer, in whatever order they come", async () => {
    const { source, store, size } = await shown();
    void store.load();
    source.written = 16;
    source.change();
    await source.answer(1);
    await source.answer();
    expect(size()).toBe(16);
  });

  it("goes back to the one in the source where a choice could not be written", async () => {
    const { source, store, size } = await shown();
    source.choose = () => Promise.reject(new Error("ambiguous"));
    store.choose(CURVE[3]!);
    await new Promise((resolve) => setTimeout(resolve));
    await source.answer();
    expect(size()).toBe(32);
    expect(store.problem.value).toBe("ambiguous");
  });
});

describe("the gutter", () => {
  it("follows the module that is explored, until the way back to the top", async () => {
    const { source, store } = await shown();
    expect(source.explored).toBe(null);
    store.descend(NET);
    expect(source.explored).toEqual([{ file: "/p/net.py", line: 3, share: 0.75 }]);
    store.ascend(0);
    expect(source.explored).toBe(null);
  });
});

it("lights up the line of the part that the pointer is on", async () => {
  const { source, store } = await shown();
  store.point(CALL as CostNode);
  expect(source.lit).toEqual(["/p/net.py", 3]);
  store.point(null);
  expect(source.lit![0]).toBe(null);
});

describe("other devices", () => {
  it("are predicted once somebody looks, at the size that is chosen", async () => {
    const { source, store } = await shown();
    expect(store.devices.answer.value).toBeNull();
    store.open("devices");
    expect(store.devices.busy.value).toBe(true);
    await source.answer();
    expect(store.devices.busy.value).toBe(false);
    expect(store.devices.size.value).toBe(32);
    store.devices.prefer(1);
    expect(store.devices.size.value).toBe(16);
  });

  it("are predicted again after a new measurement, and only then", async () => {
    const { source, store } = await shown();
    store.open("devices");
    await source.answer();
    source.change();
    await source.answer();
    expect(store.devices.answer.value).not.toBeNull();
    source.points = [{ batch: 32 } as Point];
    source.change();
    await source.answer();
    expect(store.devices.answer.value).toBeNull();
    expect(store.devices.busy.value).toBe(true);
    await source.answer();
    expect(store.devices.answer.value).not.toBeNull();
  });

  it("say why they cannot be predicted", async () => {
    const { source, store } = await shown();
    source.problem = "unknown device";
    store.open("devices");
    await source.answer();
    expect(store.devices.problem.value).toBe("unknown device");
    expect(store.devices.answer.value).toBeNull();
  });

  it("show the latest of several answers", async () => {
    const { source, store } = await shown();
    store.open("devices");
    source.problem = "late";
    void store.devices.load();
    await source.answer(1);
    expect(store.devices.problem.value).toBe("late");
    source.problem = null;
    await source.answer();
    expect(store.devices.answer.value).toBeNull();
  });
});
