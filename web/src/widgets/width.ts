import { useLayoutEffect, useRef, useState } from "preact/hooks";

type Measured<Kind> = [box: { current: Kind | null }, px: number];

/** The width of an element, px, as it changes. */
export function useWidth<Kind extends HTMLElement = HTMLElement>(): Measured<Kind> {
  return useExtent("clientWidth");
}

/** The height of an element that something else sets, px, as it changes. */
export function useHeight<Kind extends HTMLElement = HTMLElement>(): Measured<Kind> {
  return useExtent("clientHeight");
}

function useExtent<Kind extends HTMLElement>(of: "clientWidth" | "clientHeight"): Measured<Kind> {
  const box = useRef<Kind>(null);
  const [px, setPx] = useState(320);
  useLayoutEffect(() => {
    const watch = new ResizeObserver(() => setPx(box.current?.[of] ?? 320));
    if (box.current) watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  return [box, px];
}
