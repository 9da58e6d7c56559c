import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { atRest, awaiting, count, whileAtRest } from "../src/state/awaited";

describe("a view at rest", () => {
  beforeEach(() => void vi.useFakeTimers());
  afterEach(() => void vi.useRealTimers());

  it("is one in which nobody has waited for so long", async () => {
    const rested = vi.fn();
    void atRest(60).then(rested);
    await vi.advanceTimersByTimeAsync(50);
    count(1);
    await vi.advanceTimersByTimeAsync(500);
    expect(rested).not.toHaveBeenCalled();
    count(-1);
    await vi.advanceTimersByTimeAsync(50);
    expect(rested).not.toHaveBeenCalled();
    await vi.advanceTimersByTimeAsync(20);
    expect(rested).toHaveBeenCalledOnce();
  });

  it("lets work go on until somebody waits", async () => {
    const signals: AbortSignal[] = [];
    const never = (signal: AbortSignal): Promise<string> =>
      new Promise((resolve) => {
        signals.push(signal);
        signal.addEventListener("abort", () => resolve("withdrawn"));
      });
    const work = whileAtRest(never);
    expect(signals[0]!.aborted).toBe(false);
    void awaiting(Promise.resolve());
    expect(await work).toBe("withdrawn");
  });

  it("leaves finished work alone", async () => {
    let seen: AbortSignal | null = null;
    expect(await whileAtRest((signal) => Promise.resolve((seen = signal)))).toBe(seen);
    await awaiting(Promise.resolve());
    expect(seen!.aborted).toBe(false);
  });
});
