import { effect } from "@preact/signals";
import type { Store } from "./store";

const POLL_MS = 250;

/** Reads what is open until all of it is, and goes to where a trace says to begin. */
export function begin(store: Store): void {
  void poll(store);
  effect(() => {
    const start = store.overview.value.value?.start;
    if (start && !store.overview.value.loading && store.view.value.path === null) {
      store.set({ path: start, chosen: start });
    }
  });
  effect(() => {
    const name = store.entry.value?.name;
    document.title = name ? `${name} · stepscope` : "stepscope";
  });
}

async function poll(store: Store): Promise<void> {
  try {
    const traces = await store.host.traces();
    const same = JSON.stringify(traces) === JSON.stringify(store.traces.peek());
    if (!same) store.traces.value = traces;
    store.failure.value = "";
    if (!store.host.live || !traces.traces.some((one) => one.state === "loading")) return;
  } catch (error) {
    store.failure.value = error instanceof Error ? error.message : String(error);
    if (!store.host.live) return;
    await pause(4 * POLL_MS);
  }
  await pause(POLL_MS);
  await poll(store);
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
