import { effect, signal } from "@preact/signals";

/** How many answers are on their way that somebody waits for. */
const awaited = signal(0);

/** So many more of them. */
export function count(by: number): void {
  awaited.value = awaited.peek() + by;
}

/** Counts some work as awaited until it is done. */
export async function awaiting<T>(work: Promise<T>): Promise<T> {
  count(1);
  try {
    return await work;
  } finally {
    count(-1);
  }
}

/** Marks an element from when something is asked for until the answer is drawn. */
export function markBusy(element: HTMLElement): void {
  const rest = (): void => {
    if (!awaited.peek()) delete element.dataset.busy;
  };
  effect(() => {
    if (awaited.value) element.dataset.busy = "";
    else requestAnimationFrame(() => setTimeout(rest));
  });
}
