import { effect } from "@preact/signals";
import { messageOf } from "../base/error";
import { firstStep } from "./pair";
import type { Store } from "./store";

const POLL_MS = 250;

/** Reads what is open until all of it is, and goes to where a trace says to begin. */
export function begin(store: Store): void {
  effect(() => {
    const { id, state } = store.entry.value ?? {};
    if (id === undefined || state !== "closed") return;
    store.host.open(id).then(
      () => void poll(store),
      (error: unknown) => (store.failure.value = messageOf(error)),
    );
  });
  void poll(store);
  effect(() => {
    const start = firstStep(store, store.view.value.over);
    if (start && !store.overview.value.loading && store.view.value.path === null) {
      store.set({ path: start, chosen: "" });
    }
  });
  effect(() => {
    const name = store.entry.value?.name;
    document.title = name ? `${name} · stepscope` : "stepscope";
  });
}

async function poll(store: Store): Promise<void> {
  while (!(await allRead(store))) {
    const ms = store.failure.value ? 5 * POLL_MS : POLL_MS;
    await new Promise((resolve) => setTimeout(resolve, ms));
  }
}

/** Whether there is nothing more to ask for: every trace is read, or is not going to be. */
async function allRead(store: Store): Promise<boolean> {
  try {
    const traces = await store.host.traces();
    const same = JSON.stringify(traces) === JSON.stringify(store.traces.peek());
    if (!same) store.traces.value = traces;
    store.failure.value = "";
    return !store.host.live || traces.traces.every((one) => one.state !== "loading");
  } catch (error) {
    store.failure.value = messageOf(error);
    return !store.host.live;
  }
}
