import type { Subject } from "../api/client";

/** All that a URL says of what is on screen, so that it can be sent to somebody. */
export interface View {
  trace: string;
  /** The operation whose inside is the lowest level; null until the trace says where to begin. */
  path: string | null;
  /** The chosen operation; empty for none. */
  chosen: string;
  /** What was chosen in another pane, which led to the operation. */
  subject: Subject | null;
  pane: string;
  /** What is searched. */
  text: string;
  /** All threads, streams and ranks, not the longest of a kind. */
  every: boolean;
  /** Tables of the step on screen alone, not means over all. */
  oneStep: boolean;
  /** The timeline as a table. */
  asTable: boolean;
  file: string;
  /** What-if changes to try, as `stepscope whatif` takes them. */
  changes: string[];
}

export const NO_VIEW: View = {
  trace: "",
  path: null,
  chosen: "",
  subject: null,
  pane: "overview",
  text: "",
  every: false,
  oneStep: false,
  asTable: false,
  file: "",
  changes: [],
};

/** A view as a URL's fragment; what is as usual is left out. */
export function toHash(view: View): string {
  const said = new URLSearchParams();
  const say = (key: string, value: string, usual = ""): void => {
    if (value !== usual) said.set(key, value);
  };
  say("trace", view.trace);
  if (view.path !== null) said.set("path", view.path);
  if (view.chosen !== view.path) say("chosen", view.chosen);
  say("subject", view.subject ? subjectText(view.subject) : "");
  say("pane", view.pane, NO_VIEW.pane);
  say("text", view.text);
  say("file", view.file);
  say("changes", view.changes.join("\n"));
  for (const key of ["every", "oneStep", "asTable"] as const) say(key, view[key] ? "1" : "");
  // Slashes need no escape in a fragment, and a path is easier to read with them.
  return `#${said.toString().replaceAll("%2F", "/")}`;
}

/** What a fragment says; unknown and broken parts are passed over. */
export function fromHash(hash: string): View {
  const said = new URLSearchParams(hash.replace(/^#/, ""));
  const path = said.get("path");
  return {
    trace: said.get("trace") ?? "",
    path,
    chosen: said.get("chosen") ?? path ?? "",
    subject: parseSubject(said.get("subject") ?? ""),
    pane: said.get("pane") ?? NO_VIEW.pane,
    text: said.get("text") ?? "",
    every: said.get("every") === "1",
    oneStep: said.get("oneStep") === "1",
    asTable: said.get("asTable") === "1",
    file: said.get("file") ?? "",
    changes: (said.get("changes") ?? "").split("\n").filter(Boolean),
  };
}

function subjectText(subject: Subject): string {
  if ("module" in subject) return `module:${subject.module}`;
  if ("kernel" in subject) return `kernel:${subject.kernel}`;
  if ("event" in subject) return `event:${subject.event}`;
  if ("finding" in subject) {
    const place = subject.place === undefined ? "" : `.${subject.place}`;
    return `finding:${subject.finding}${place}`;
  }
  return `line:${subject.line}:${subject.file}`;
}

function parseSubject(text: string): Subject | null {
  const found = /^(module|kernel|event|line|finding):(.*)$/s.exec(text);
  if (!found) return null;
  const [, kind, value] = found as unknown as [string, string, string];
  if (kind === "kernel") return { kernel: value };
  if (kind === "line") {
    const line = /^(\d+):(.+)$/s.exec(value);
    return line ? { line: Number(line[1]), file: line[2]! } : null;
  }
  if (kind === "finding") {
    const finding = /^(\d+)(?:\.(\d+))?$/.exec(value);
    if (!finding) return null;
    const number = Number(finding[1]);
    return finding[2] ? { finding: number, place: Number(finding[2]) } : { finding: number };
  }
  if (!/^\d+$/.test(value)) return null;
  return kind === "module" ? { module: Number(value) } : { event: Number(value) };
}
