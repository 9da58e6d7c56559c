/** On paper a page is as it is on screen: a sheet has the window's size, so that nothing is laid out again. */
export function printAsShown(): void {
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets.push(sheet);
  addEventListener("beforeprint", () =>
    sheet.replaceSync(`@page { size: ${innerWidth}px ${innerHeight}px; margin: 0; }`),
  );
}
