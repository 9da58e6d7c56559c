import { signal } from "@preact/signals";
import { describe, expect, it, vi } from "vitest";
import { awaiting, markBusy } from "../src/state/awaited";
import { latest } from "../src/state/latest";

const turn = (): Promise<void> => new Promise((resolve) => setTimeout(resolve));

/** A question whose answers come when the test says so. */
function asked(first: string) {
  const question = signal<string | null>(first);
  const waiting = new Map<string, (error?: string) => void>();
  const answer = latest(() => {
    const text = question.value;
    if (text === null) return null;
    return new Promise<string>((resolve, reject) => {
      waiting.set(text, (error) => (error ? reject(new Error(error)) : resolve(`re ${text}`)));
    });
  });
  const come = (text: string, error?: string): Promise<void> => {
    waiting.get(text)!(error);
    return turn();
  };
  return { question, answer, come };
}

describe("the latest answer", () => {
  it("is that of the newest question, in whatever order they come", async () => {
    const { question, answer, come } = asked("a");
    question.value = "b";
    await come("b");
    await come("a");
    expect(answer.value).toEqual({ value: "re b", error: "", loading: false });
  });

  it("stays until the next one is there", async () => {
    const { question, answer, come } = asked("a");
    await come("a");
    question.value = "b";
    expect(answer.value).toEqual({ value: "re a", error: "", loading: true });
    await come("b");
  });

  it("is no error any more once something else is asked", async () => {
    const { question, answer, come } = asked("a");
    await come("a", "not there");
    expect(answer.value).toEqual({ value: null, error: "not there", loading: false });
    question.value = "b";
    expect(answer.value).toEqual({ value: null, error: "", loading: true });
    question.value = null;
    expect(answer.value).toEqual({ value: null, error: "", loading: false });
  });
});

describe("what is awaited", () => {
  it("marks the page from the question until the answer is drawn", async () => {
    vi.stubGlobal("requestAnimationFrame", (act: () => void) => act());
    const page = { dataset: {} } as HTMLElement;
    const { question, come } = asked("a");
    markBusy(page);
    const busy = (): boolean => "busy" in page.dataset;
    expect(busy()).toBe(true);
    question.value = "b";
    await come("a");
    expect(busy()).toBe(true);
    await come("b");
    await vi.waitFor(() => expect(busy()).toBe(false));

    const work = awaiting(Promise.reject(new Error("no")));
    expect(busy()).toBe(true);
    await expect(work).rejects.toThrow("no");
    await vi.waitFor(() => expect(busy()).toBe(false));
  });
});
