import { effect, signal } from "@preact/signals";

export type Theme = "light" | "dark";

const KEY = "stepscope theme";
const system = matchMedia("(prefers-color-scheme: dark)");

/** The theme on screen: the user's choice, else the system's. */
export const theme = signal<Theme>(remembered() ?? (system.matches ? "dark" : "light"));

export function toggleTheme(): void {
  theme.value = theme.value === "dark" ? "light" : "dark";
  try {
    localStorage.setItem(KEY, theme.value);
  } catch {
    // a file's page may have no storage; the choice then lasts as long as the page
  }
}

export function followTheme(): void {
  system.addEventListener("change", () => {
    theme.value = remembered() ?? (system.matches ? "dark" : "light");
  });
  effect(() => {
    document.documentElement.dataset.theme = theme.value;
  });
}

function remembered(): Theme | null {
  try {
    const kept = localStorage.getItem(KEY);
    return kept === "light" || kept === "dark" ? kept : null;
  } catch {
    return null;
  }
}
