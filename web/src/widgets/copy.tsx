import type { JSX } from "preact";
import { useState } from "preact/hooks";

const SHOWN_MS = 2000;

/** A button that copies a text; where the browser refuses, it says so. */
export function CopyButton(props: {
  text: string | (() => string);
  label: string;
  /** What to do where the browser refuses. */
  instead?: string;
}): JSX.Element {
  const { text, label } = props;
  const [said, say] = useState("Copy");
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(typeof text === "string" ? text : text());
      say("Copied");
    } catch {
      say(props.instead ?? "Select the text to copy it");
    }
    setTimeout(() => say("Copy"), SHOWN_MS);
  };
  return (
    <button type="button" class="copy" aria-label={label} onClick={() => void copy()}>
      <span aria-live="polite">{said}</span>
    </button>
  );
}
