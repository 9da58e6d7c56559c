import type { Subject } from "../api/client";
import type { Note, TableRow } from "../model/notes";
import type { Span } from "../model/span";
import { choiceText, parseChoice, type TableChoice } from "../model/table/choice";

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
  /** Device work below what launched it, earlier by how far the device runs behind. */
  aligned: boolean;
  /** What of the time axis is visible, ns; null for all of the lowest level. */
  window: Span | null;
  /** The part of the axis whose statistics are shown. */
  area: Area | null;
  /** The column that the work in the area is grouped by. */
  areaBy: string;
  /** A moment that other times are compared with, ns; null for none. */
  marker: number | null;
  /** Tables of the step on screen alone, not means over all. */
  oneStep: boolean;
  /** The timeline as a table. */
  asTable: boolean;
  /** The query that was run; empty for none. */
  sql: string;
  /** The rows of the query as a track. */
  sqlTrack: boolean;
  /** Kernels as a roofline plot. */
  roofline: boolean;
  /** Collectives by rank: who arrives last, and who waits. */
  byRank: boolean;
  /** Source lines by the contexts of the whole recording, where there are steps as well. */
  whole: boolean;
  file: string;
  /** How tables are sorted, filtered and shown, by their names. */
  tables: Readonly<Record<string, TableChoice>>;
  /** What-if changes to try, as `stepscope whatif` takes them. */
  changes: string[];
  flame: FlameView;
  memory: MemoryView;
  /** What lies below the step on screen in the timeline; empty for its levels and tracks. */
  over: Over;
  /** The rank of the other trace that this one is compared with; null for the usual one. */
  againstRank: number | null;
  /** What somebody wrote, about any of the open traces. */
  notes: readonly Note[];
}

/** A part of the axis, and the tracks that somebody dragged over; none for all of the trace. */
export interface Area extends Span {
  tracks: readonly string[];
}

/** A prediction, or a step of the trace or rank that `flame.against` and `againstRank` name. */
export type Over = "" | "predicted" | "other";

/** What of the flame graph is on screen. */
export interface FlameView {
  /** The measure; empty for the usual one. */
  by: string;
  /** Each place with its callers below it. */
  up: boolean;
  /** The trace that this one is compared with, by its id; empty for none. */
  against: string;
  /** What is searched among its names. */
  find: string;
  zoom: Zoom | null;
}

/** What of the memory is on screen. */
export interface MemoryView {
  /** Empty for the first device. */
  device: string;
  /** What its areas are: kind, module or line; empty for kinds. */
  by: string;
  /** The area that stands out, by its position; null for none. */
  group: number | null;
  /** When to show what lives, ns; null for the peak. */
  moment: number | null;
}

/** Which box fills the width. Nodes are numbers in the tree of one rank and step. */
export interface Zoom {
  /** The rank, or rank and step, that the tree is of. */
  tree: string;
  /** The node of the first box, and the one that fills the width. */
  start: number;
  node: number;
}

export const NO_FLAME: FlameView = { by: "", up: false, against: "", find: "", zoom: null };

export const NO_MEMORY: MemoryView = { device: "", by: "", group: null, moment: null };

export const NO_VIEW: View = {
  trace: "",
  path: null,
  chosen: "",
  subject: null,
  pane: "overview",
  text: "",
  every: false,
  aligned: false,
  window: null,
  area: null,
  areaBy: "name",
  marker: null,
  oneStep: false,
  asTable: false,
  sql: "",
  sqlTrack: false,
  roofline: false,
  byRank: false,
  whole: false,
  file: "",
  tables: {},
  changes: [],
  flame: NO_FLAME,
  memory: NO_MEMORY,
  over: "",
  againstRank: null,
  notes: [],
};

/** A view as a URL's fragment; what is as usual is left out. */
export function toHash(view: View): string {
  const said = new URLSearchParams();
  const say = (key: string, value: string, usual = ""): void => {
    if (value !== usual) said.set(key, value);
  };
  say("trace", view.trace);
  if (view.path !== null) said.set("path", view.path);
  if (view.chosen !== (view.path ?? "")) said.set("chosen", view.chosen);
  say("at", view.window ? spanText(view.window) : "");
  say("area", view.area ? [spanText(view.area), ...view.area.tracks].join(",") : "");
  say("area_by", view.areaBy, NO_VIEW.areaBy);
  say("marker", String(view.marker ?? ""));
  say("subject", view.subject ? subjectText(view.subject) : "");
  say("pane", view.pane, NO_VIEW.pane);
  say("text", view.text);
  say("file", view.file);
  say("sql", view.sql);
  say("changes", view.changes.join("\n"));
  const { by, up, against, find, zoom } = view.flame;
  say("by", by);
  say("up", up ? "1" : "");
  say("against", against);
  say("against_rank", view.againstRank === null ? "" : String(view.againstRank));
  say("over", view.over);
  say("find", find);
  say("zoom", zoom ? `${zoom.tree}:${zoom.start}:${zoom.node}` : "");
  for (const [id, choice] of Object.entries(view.tables)) say(TABLE + id, choiceText(choice));
  say("notes", notesText(view.notes));
  say("memory", memoryText(view.memory), memoryText(NO_MEMORY));
  for (const key of [
    "every",
    "aligned",
    "oneStep",
    "asTable",
    "sqlTrack",
    "roofline",
    "byRank",
    "whole",
  ] as const)
    say(key, view[key] ? "1" : "");
  // Slashes need no escape in a fragment, and a path is easier to read with them.
  return `#${said.toString().replaceAll("%2F", "/").replaceAll("%2C", ",")}`;
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
    window: parseSpan(said.get("at") ?? ""),
    area: parseArea(said.get("area") ?? ""),
    areaBy: said.get("area_by") ?? NO_VIEW.areaBy,
    marker: parseTime(said.get("marker") ?? ""),
    every: said.get("every") === "1",
    aligned: said.get("aligned") === "1",
    oneStep: said.get("oneStep") === "1",
    asTable: said.get("asTable") === "1",
    sql: said.get("sql") ?? "",
    sqlTrack: said.get("sqlTrack") === "1",
    roofline: said.get("roofline") === "1",
    byRank: said.get("byRank") === "1",
    whole: said.get("whole") === "1",
    file: said.get("file") ?? "",
    tables: parseTables(said),
    changes: (said.get("changes") ?? "").split("\n").filter(Boolean),
    flame: {
      by: said.get("by") ?? "",
      up: said.get("up") === "1",
      against: said.get("against") ?? "",
      find: said.get("find") ?? "",
      zoom: parseZoom(said.get("zoom") ?? ""),
    },
    memory: parseMemory(said.get("memory") ?? ""),
    over: (["predicted", "other"] as const).find((one) => one === said.get("over")) ?? "",
    againstRank: parseNumber(said.get("against_rank") ?? ""),
    notes: parseNotes(said.get("notes") ?? ""),
  };
}

const TABLE = "t.";

function parseTables(said: URLSearchParams): Record<string, TableChoice> {
  const tables = [...said].filter(([key]) => key.startsWith(TABLE));
  return Object.fromEntries(
    tables.map(([key, text]) => [key.slice(TABLE.length), parseChoice(text)]),
  );
}

function spanText({ from, to }: Span): string {
  return `${Math.round(from)}-${Math.round(to)}`;
}

function parseNumber(text: string): number | null {
  return /^\d{1,9}$/.test(text) ? Number(text) : null;
}

function parseTime(text: string): number | null {
  return /^\d{1,18}$/.test(text) ? Number(text) : null;
}

function parseSpan(text: string): Span | null {
  const found = /^(\d{1,18})-(\d{1,18})$/.exec(text);
  const span = found && { from: Number(found[1]), to: Number(found[2]) };
  return span && span.to > span.from ? span : null;
}

function parseArea(text: string): Area | null {
  const [times = "", ...tracks] = text.split(",");
  const span = parseSpan(times);
  return span && { ...span, tracks: tracks.filter((one) => /^[a-z][\d.]+$/.test(one)) };
}

function parseZoom(text: string): Zoom | null {
  const found = /^([\d.]*):(\d+):(\d+)$/.exec(text);
  return found && { tree: found[1]!, start: Number(found[2]), node: Number(found[3]) };
}

function memoryText({ device, by, group, moment }: MemoryView): string {
  return [moment ?? "", group ?? "", by, device].join(",");
}

function parseMemory(text: string): MemoryView {
  const [moment = "", group = "", by = "", ...device] = text.split(",");
  return {
    device: device.join(","),
    by: /^[a-z]*$/.test(by) ? by : "",
    group: parseNumber(group),
    moment: parseTime(moment),
  };
}

/** A line for each note, its parts separated by tabs; what has no text yet is left out. */
function notesText(notes: readonly Note[]): string {
  const line = ({ trace, time, path, subject, row, label, text }: Note): string =>
    [trace, String(Math.round(time)), path, pinText(subject, row), label, text]
      .map((part) => part.replace(/\s/g, " "))
      .join("\t");
  return notes
    .filter((one) => one.text)
    .map(line)
    .join("\n");
}

function parseNotes(text: string): Note[] {
  return text.split("\n").flatMap((line) => {
    const [trace, time = "", path, subject, label, ...said] = line.split("\t");
    if (!said.length || !/^(\d{1,18}|-1)$/.test(time)) return [];
    const [on, where, what] = [trace ?? "", path ?? "", label ?? ""];
    const row = parseRow(subject ?? "");
    if ((row === null) !== Number(time) >= 0) return [];
    const led = row ? null : parseSubject(subject ?? "");
    const text = said.join(" ");
    return [{ trace: on, time: Number(time), path: where, subject: led, row, label: what, text }];
  });
}

/** The row that a note is about: one that leads to an operation, or one of a table. */
function pinText(subject: Subject | null, row: TableRow | null): string {
  if (row) return `row:${row.table}:${row.key}`;
  return subject ? subjectText(subject) : "";
}

function parseRow(text: string): TableRow | null {
  const found = /^row:(\w+):(.*)$/s.exec(text);
  return found && { table: found[1]!, key: found[2]! };
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
