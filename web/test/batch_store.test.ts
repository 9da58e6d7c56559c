import { describe, expect, it } from "vitest";
import type { BatchHost } from "../src/api/batch_host";
import type { BatchAnswer, BatchProfile, Prediction } from "../src/api/batch_types";
import { BatchStore } from "../src/state/batch";

const CURVE = [8, 16, 32, 64].map((batch) => ({ batch }) as Prediction);

/** A source with a number in it: asked and written to, it answers when the test says so. */
class Source implements BatchHost {
  readonly edits = true;
  written = 32;
  private readonly waiting: (() => void)[] = [];
  private changed: () => void = () => undefined;

  ask(): Promise<BatchAnswer> {
    const { written } = this; // as it is now, however late the answer comes
    const batch = { batch: 32, curve: CURVE } as BatchProfile;
    return this.later(() => ({ batch, problem: null, written }));
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
  highlight(): void {}
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
