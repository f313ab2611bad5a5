/** Copies text. The clipboard API is missing over plain HTTP, where a selected text area serves. */
export async function copyText(text: string): Promise<boolean> {
  if (navigator.clipboard && window.isSecureContext) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // the browser asks for a permission that was refused
    }
  }
  return copySelected(text);
}

function copySelected(text: string): boolean {
  const previous = document.activeElement;
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "hidden-text";
  (document.querySelector("dialog[open]") ?? document.body).append(area); // a dialog keeps the focus inside
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (previous instanceof HTMLElement) previous.focus();
  return done;
}
