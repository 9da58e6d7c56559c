import type { JSX } from "preact";
import { useState } from "preact/hooks";

const SHOWN_MS = 2000;

/** A button that copies a text; where the browser refuses, it says so. */
export function CopyButton({ text, label }: { text: string; label: string }): JSX.Element {
  const [said, say] = useState("Copy");
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(text);
      say("Copied");
    } catch {
      say("Select the text to copy it");
    }
    setTimeout(() => say("Copy"), SHOWN_MS);
  };
  return (
    <button type="button" class="copy" aria-label={label} onClick={() => void copy()}>
      <span aria-live="polite">{said}</span>
    </button>
  );
}
