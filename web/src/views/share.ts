import { messageOf } from "../base/error";
import { stepOf } from "../base/path";
import { saveBlob } from "../base/save";
import { OPENS_AT } from "../base/start";
import { awaiting } from "../state/awaited";
import type { Store } from "../state/store";
import { fileName } from "./file_name";

/** A way to show somebody what is on screen. */
export interface Share {
  name: string;
  run: () => void;
}

export function sharesOf(store: Store): Share[] {
  const link = { name: "Copy link to this view", run: () => void copyLink(store) };
  if (!store.host.page) return [link];
  return [
    link,
    { name: "Save as a single file", run: () => void savePage(store, false) },
    { name: "Save as a single file, redacted", run: () => void savePage(store, true) },
  ];
}

/** The URL holds the whole view; where the browser refuses, it is shown to be copied. */
async function copyLink(store: Store): Promise<void> {
  const link = location.href;
  try {
    await navigator.clipboard.writeText(link);
    store.notice.value = "The link to this view is copied.";
  } catch {
    prompt("The link to this view", link);
  }
}

/**
 * The page with its data, of the rank and step on screen, which opens as it is here, with its notes;
 * redacted, it has neither these nor the trace's name.
 */
async function savePage(store: Store, redact: boolean): Promise<void> {
  const { path } = store.view.value;
  const { rank, step } = stepOf(path || store.overview.value.value?.start || "") ?? {};
  const trace = store.entry.value?.id ?? "";
  store.notice.value = "The file is being written.";
  try {
    const file = await awaiting(store.host.page!(trace, { rank, step, redact }));
    const opened = redact ? file : openingAt(await file.text(), location.hash);
    saveBlob(opened, redact ? "redacted.html" : `${fileName(store, "report")}.html`);
    store.notice.value = redact ? "Saved without names that identify you." : "Saved.";
  } catch (error) {
    store.notice.value = messageOf(error);
  }
}

/** The page of a file, which opens with a view. */
function openingAt(html: string, hash: string): Blob {
  const meta = document.createElement("meta");
  meta.name = OPENS_AT;
  meta.content = hash;
  return new Blob([html.replace("<head>", () => `<head>${meta.outerHTML}`)], { type: "text/html" });
}
