// Browsers refuse workers to pages that are opened as files, and the search needs one. There,
// and only there, a hidden frame does its work: scripts may be loaded from files, and frames
// may send each other messages.
(function () {
  if (location.protocol !== "file:") return;

  class FrameWorker extends EventTarget {
    constructor(address) {
      super();
      this.onmessage = null;
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.title = "search";
      document.body.appendChild(this.frame);
      const inside = this.frame.contentWindow;
      const page = inside.document;
      page.open();
      page.write("<!doctype html><html><body></body></html>");
      page.close();
      inside.postMessage = (data) => this.tell(this, data);
      inside.importScripts = (...scripts) =>
        scripts.reduce((before, script) => before.then(() => this.load(script)), Promise.resolve());
      this.inside = inside;
      this.load(address).then(() => {
        this.ready = true;
        this.waiting.splice(0).forEach((data) => this.tell(inside, data));
      });
    }

    load(address) {
      return new Promise((done, failed) => {
        const script = this.inside.document.createElement("script");
        script.src = new URL(address, location.href).href;
        script.onload = done;
        script.onerror = failed;
        this.inside.document.body.appendChild(script);
      });
    }

    tell(target, data) {
      const kind = target === this ? MessageEvent : this.inside.MessageEvent;
      const message = new kind("message", { data });
      setTimeout(() => {
        target.dispatchEvent(message);
        if (target === this && this.onmessage) this.onmessage(message);
      });
    }

    postMessage(data) {
      if (this.ready) this.tell(this.inside, data);
      else this.waiting.push(data);
    }

    terminate() {
      this.frame.remove();
    }
  }

  window.IFrameWorker = FrameWorker;
  window.Worker = FrameWorker;
})();
