import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { perfettoUrl, sendToPerfetto } from "../api/perfetto";
import { messageOf } from "../base/error";
import { last } from "../base/path";
import { saveText } from "../base/save";
import type { Store } from "../state/store";

/** Opens an operation's raw events in Perfetto, or saves them. */
export function RawEvents({ store, path }: { store: Store; path: string }): JSX.Element {
  const busy = useSignal(false);
  const ready = path !== "" && !busy.value;
  const guard = async (work: () => Promise<void>): Promise<void> => {
    busy.value = true;
    try {
      await work();
    } catch (error) {
      store.notice.value = messageOf(error);
    }
    busy.value = false;
  };
  return (
    <span class="tool-group">
      {store.host.live && (
        <button
          type="button"
          disabled={!ready}
          title="Open the raw events of the selection in Perfetto (p)"
          data-action="perfetto"
          onClick={() => void guard(() => openInPerfetto(store, path))}
        >
          <span class="wide">Open in </span>Perfetto
        </button>
      )}
      <button
        type="button"
        disabled={!ready}
        title="Save the raw events of the selection as a Chrome trace"
        data-action="download"
        onClick={() => void guard(() => download(store, path))}
      >
        Save
      </button>
    </span>
  );
}

export async function openInPerfetto(store: Store, path: string): Promise<void> {
  const client = store.client.value;
  const url = perfettoUrl(store.traces.value?.perfetto ?? null);
  // Opened within the click itself: browsers block windows that open later.
  const target = window.open(url, "_blank");
  if (!target)
    throw new Error("The browser blocked the Perfetto window. Allow pop-ups, or save the events.");
  if (client)
    await sendToPerfetto(
      target,
      new URL(url, location.href).origin,
      client.rawEvents(path),
      title(store, path),
    );
}

async function download(store: Store, path: string): Promise<void> {
  const events = await store.client.value?.rawEvents(path);
  saveText(JSON.stringify(events), `${title(store, path)}.json`, "application/json");
}

function title(store: Store, path: string): string {
  const name =
    store.details.value.value?.path === path ? store.details.value.value.name : last(path);
  return `${store.entry.value?.id ?? "trace"} ${name}`;
}
