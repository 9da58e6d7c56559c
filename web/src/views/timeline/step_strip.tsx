import type { JSX } from "preact";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import type { StepRow } from "../../api/types";
import { duration, plural } from "../../base/format";
import { stepOf } from "../../base/path";
import { stepAt, stepBeside, stepGrid } from "../../model/steps";
import { textMeasure } from "../../render/canvas2d";
import { FONT_SMALL } from "../../render/fitted";
import type { Palette } from "../../render/palette";
import { drawSteps, stripHeight } from "../../render/steps";
import type { Store } from "../../state/store";
import { gutter } from "./scene";

/** The step on screen, or the one to open first. */
function stepNow(store: Store): { rank: number; step: number } | null {
  const start = store.overview.value.value?.start ?? "";
  return stepOf(store.view.value.path ?? "") ?? stepOf(start);
}

/** Opens the next step of the rank, or the one before. */
export function walkSteps(store: Store, by: 1 | -1): void {
  const now = stepNow(store);
  const next = now && stepBeside(store.overview.value.value?.steps ?? [], now, by);
  if (next) store.open(next.id, "");
}

/** All steps of all ranks, to walk along: a click opens one. */
export function StepStrip(props: {
  store: Store;
  width: number;
  palette: Palette;
}): JSX.Element | null {
  const { store, width, palette } = props;
  const steps = store.overview.value.value?.steps;
  const grid = useMemo(() => stepGrid(steps ?? []), [steps]);
  const canvas = useRef<HTMLCanvasElement>(null);
  const now = stepNow(store);
  const open = now ? `s${now.step}.${now.rank}` : "";
  const height = stripHeight(grid);
  useLayoutEffect(() => {
    if (canvas.current)
      drawSteps(canvas.current, { grid, width, palette, open, measure: textMeasure(FONT_SMALL) });
  }, [grid, width, palette, open]);
  if (!steps || steps.length < 2 || !now) return null;
  const meet = (event: MouseEvent) => {
    const column = Math.floor((event.offsetX / width) * grid.numbers.length);
    return stepAt(grid, Math.floor((event.offsetY / height) * grid.ranks.length), column);
  };
  const length = steps.find((one) => one.id === open)?.runtime_ns ?? 0;
  const several = grid.ranks.length > 1;
  return (
    <div class="step-strip">
      <span class="step-walk" style={{ width: `${gutter.value}px` }}>
        <Walk store={store} by={-1} />
        <span class="dim" title={duration(length)}>
          {gutter.value < 120 ? now.step : `step ${now.step}`}
          {several && gutter.value >= 120 && `, rank ${now.rank}`}
        </span>
        <Walk store={store} by={1} />
      </span>
      <canvas
        ref={canvas}
        role="img"
        aria-label={`${plural(steps.length, "step")}; step ${now.step}${several ? ` of rank ${now.rank}` : ""} is open`}
        style={{ width: `${width}px`, height: `${height}px` }}
        onPointerMove={(event) => {
          const step = meet(event);
          event.currentTarget.title = step ? stepTitle(step, several) : "";
        }}
        onClick={(event) => {
          const step = meet(event);
          if (step) store.open(step.id, "");
        }}
      />
    </div>
  );
}

function Walk({ store, by }: { store: Store; by: 1 | -1 }): JSX.Element {
  const [name, key, sign] = by > 0 ? ["Next", "]", "▸"] : ["Previous", "[", "◂"];
  const now = stepNow(store);
  const steps = store.overview.value.value?.steps ?? [];
  return (
    <button
      type="button"
      class="icon"
      aria-label={`${name} step`}
      title={`${name} step (${key})`}
      disabled={!now || !stepBeside(steps, now, by)}
      onClick={() => walkSteps(store, by)}
    >
      {sign}
    </button>
  );
}

function stepTitle(one: StepRow, several: boolean): string {
  const name = `step ${one.step}${several ? ` of rank ${one.rank}` : ""}`;
  const device = `device busy ${duration(one.device_busy_ns)}, idle ${duration(one.device_idle_ns)}`;
  const works = one.device_busy_ns + one.device_idle_ns > 0;
  return `${name}: ${duration(one.runtime_ns)}${works ? `, ${device}` : ""}`;
}
