import type { JSX } from "preact";

/** A text in which words between backticks are code. */
export function Coded({ text }: { text: string }): JSX.Element {
  return <>{text.split("`").map((part, i) => (i % 2 ? <code key={i}>{part}</code> : part))}</>;
}
