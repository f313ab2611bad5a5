/** Where the service is mounted, and its version when this page was loaded. The service writes both into the page. */
export const PREFIX = metaContent("tenuto-prefix");
export const VERSION = metaContent("tenuto-version");

function metaContent(name: string): string {
  if (typeof document === "undefined") return "";
  return document.querySelector<HTMLMetaElement>(`meta[name="${name}"]`)?.content ?? "";
}
