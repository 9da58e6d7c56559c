import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, relative, resolve } from "node:path";
import { describe, expect, it } from "vitest";

/** Which folders each may import from, besides itself: base → api → model → state → the rest. */
const ALLOWED: Record<string, string[]> = {
  base: [],
  api: ["base"],
  model: ["base", "api"],
  state: ["base", "api", "model"],
  render: ["base", "api", "model", "state"],
  widgets: ["base", "model"],
  views: ["base", "api", "model", "state", "render", "widgets"],
};

const ROOT = resolve(import.meta.dirname, "../src");

function sources(): string[] {
  return readdirSync(ROOT, { recursive: true, encoding: "utf-8" })
    .filter((file) => /\.tsx?$/.test(file))
    .map((file) => join(ROOT, file));
}

function imported(file: string): string[] {
  const text = readFileSync(file, "utf-8");
  return [...text.matchAll(/(?:from|import)\s+"(\.[^"]*)"/g)].map((found) =>
    relative(ROOT, resolve(dirname(file), found[1]!)),
  );
}

const folderOf = (path: string): string => path.split("/")[0]!;

describe("imports", () => {
  it.each(sources().map((file) => relative(ROOT, file)))("%s goes only to the left", (file) => {
    const folder = folderOf(file);
    if (!file.includes("/")) return; // an entry puts it all together
    const wrong = imported(join(ROOT, file)).filter(
      (one) => folderOf(one) !== folder && !ALLOWED[folder]?.includes(folderOf(one)),
    );
    expect(wrong).toEqual([]);
  });

  it("looks at every folder", () => {
    const inFolders = sources()
      .map((file) => relative(ROOT, file))
      .filter((file) => file.includes("/"));
    const folders = new Set(inFolders.map(folderOf));
    expect([...folders].sort()).toEqual(Object.keys(ALLOWED).sort());
  });
});
