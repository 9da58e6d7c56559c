import type { JSX } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { duration, percent, plural, sideName } from "../../base/format";
import type { Level, Operation } from "../../model/level";
import type { Store } from "../../state/store";
import { hover } from "./scene";

/** What the pointer is on, beside it and never off the screen. */
export function Tooltip({ store }: { store: Store }): JSX.Element | null {
  const box = useRef<HTMLDivElement>(null);
  // What was below the pointer may be gone without the pointer having moved.
  const levels = store.view.value.asTable ? null : store.levels.value.value;
  const now = hover.value && levels?.includes(hover.value.level) ? hover.value : null;
  useLayoutEffect(() => {
    if (!now || !box.current) return;
    const { offsetWidth: width, offsetHeight: height, style } = box.current;
    const left = Math.min(now.x + 14, innerWidth - width - 8);
    const below = now.y + 18 + height < innerHeight;
    style.transform = `translate(${Math.max(left, 8)}px, ${below ? now.y + 18 : now.y - height - 12}px)`;
  });
  if (!now) return null;
  const one = now.level.operation(now.operation);
  const hits = store.hits.value?.get(now.level.path)?.[now.operation] ?? 0;
  return (
    <div class="tooltip" ref={box} role="presentation">
      <div class="tooltip-name">{one.name}</div>
      <dl>
        {facts(now.level, one, hits).map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </div>
  );
}

function facts(level: Level, one: Operation, hits: number): [string, string][] {
  const share = (ns: number): string => `${duration(ns)} · ${percent(ns / level.length)}`;
  const rows: [string, string][] = [];
  if (one.cpu > 0) rows.push(["CPU", share(one.cpu)]);
  if (one.device > 0) rows.push(["device", share(one.device)]);
  if (one.cpu > 0 && one.device > 0) rows.push(["bound by", sideName(one.boundBy)]);
  if (one.recompute > 0) rows.push(["recomputed", duration(one.recompute)]);
  if (one.count > 1)
    rows.push(["copies", `${one.count}, ${duration(one.least)} – ${duration(one.most)}`]);
  if (one.events > 1) rows.push(["raw events", String(one.events)]);
  if (hits > 0) rows.push(["found", plural(hits, "event")]);
  return rows;
}

/** The chosen operation in one sentence, for a screen reader. */
export function sentence(level: Level, index: number): string {
  const one = level.operation(index);
  const parts = facts(level, one, 0).map(([name, value]) => `${name} ${value}`);
  return `${one.name}, ${parts.join(", ")}${one.opens ? ", opens" : ""}`;
}
